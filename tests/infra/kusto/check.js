// Reads {"tables": {NAME: "(Column: type, ...)"}, "queries": {NAME: QUERY}} from stdin, and writes what Kusto's own
// analysis says of each query: {NAME: {"errors": [...], "columns": {NAME: TYPE}}}.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = path.join(__dirname, "node_modules", "@kusto", "language-service-next");
for (const file of ["bridge.min.js", "Kusto.Language.Bridge.min.js"]) {
  vm.runInThisContext(fs.readFileSync(path.join(folder, file), "utf8"), { filename: file });
}
const { KustoCode, GlobalState, Symbols } = globalThis.Kusto.Language;

function each(list) {
  return Array.from({ length: list.Count }, (_, i) => list.getItem(i));
}

const asked = JSON.parse(fs.readFileSync(0, "utf8"));
const tables = Object.entries(asked.tables).map(([name, columns]) => Symbols.TableSymbol.From(columns).WithName(name));
const database = new Symbols.DatabaseSymbol.$ctor1("workspace", tables, false);
const globals = GlobalState.Default.WithDatabase(database);

const said = {};
for (const [name, query] of Object.entries(asked.queries)) {
  const code = KustoCode.ParseAndAnalyze(query, globals);
  said[name] = {
    errors: each(code.GetDiagnostics()).map((one) => `${one.Code}: ${one.Message}`),
    columns: Object.fromEntries(each(code.ResultType.Columns).map((one) => [one.Name, one.Type.Name])),
  };
}
process.stdout.write(JSON.stringify(said));
