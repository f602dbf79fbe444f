// Runs Azurite for as long as whoever started it holds this process's stdin open.
//
// The system closes that pipe whatever ends the parent: a normal exit, Ctrl-C, kill -9. So no Azurite outlives
// the test run it belongs to, on Linux, macOS and Windows alike, and asking it to stop is closing the pipe.
"use strict";

const fs = require("fs");

const GRACE_MS = 5000; // flushing a data folder takes well under a second
const temporary = process.env.RUNONCE_AZURITE_TEMPORARY; // a folder nobody needs once we have ended

function end() {
  if (temporary) {
    process.chdir("/"); // Windows does not delete a folder somebody stands in
    fs.rmSync(temporary, { recursive: true, force: true, maxRetries: 3 });
  }
  process.exit(0);
}

process.stdin.on("error", () => {}); // "close" follows and is what counts
process.stdin.once("close", () => {
  // Azurite writes its data out when told to shut down. Before it listens it has no data, and no such listener.
  const told = !temporary && process.emit("message", "shutdown");
  if (!told) end();
  process.once("beforeExit", end);
  setTimeout(end, GRACE_MS).unref();
});
process.stdin.resume();

require("azurite/dist/src/azurite.js");
