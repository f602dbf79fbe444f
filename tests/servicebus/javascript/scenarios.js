// What a program with Microsoft's JavaScript client does, by name: node scenarios.js NAME CONNECTION_STRING QUEUE.
// Prints what it saw as one line of JSON; the Python test beside this folder says what that has to be.
const { ServiceBusClient } = require("@azure/service-bus");
const Long = require("long");

const WAIT = { maxWaitTimeInMs: 5000 };

async function receive(receiver, count) {
  const found = [];
  while (found.length < count) {
    const more = await receiver.receiveMessages(count - found.length, WAIT);
    if (!more.length) break;
    found.push(...more);
  }
  return found;
}

const scenarios = {
  async settle(client, queue) {
    const [sender, receiver] = [client.createSender(queue), client.createReceiver(queue)];
    const batch = await sender.createMessageBatch();
    for (const body of ["completed", "abandoned", "renewed"]) batch.tryAddMessage({ body });
    await sender.sendMessages(batch);
    const peeked = await receiver.peekMessages(3);
    const [completed, abandoned, renewed] = await receive(receiver, 3);
    await receiver.completeMessage(completed);
    await receiver.abandonMessage(abandoned);
    const before = renewed.lockedUntilUtc;
    const after = await receiver.renewMessageLock(renewed);
    await receiver.completeMessage(renewed);
    const [again] = await receive(receiver, 1);
    await receiver.completeMessage(again);
    return { peeked: peeked.map((m) => m.body), again: again.body, extended: after > before };
  },

  // A handler that always throws: the processor abandons each time.
  async abandon(client, queue) {
    await client.createSender(queue).sendMessages({ body: "x", messageId: "poison" });
    const counts = [];
    const [receiver, dead] = [client.createReceiver(queue), client.createReceiver(queue, { subQueueType: "deadLetter" })];
    receiver.subscribe({
      processMessage: async (message) => { counts.push(message.deliveryCount); throw new Error("always"); },
      processError: async () => {},
    });
    const [letter] = await receive(dead, 1);
    await dead.completeMessage(letter);
    return {
      counts, reason: letter.deadLetterReason, description: letter.deadLetterErrorDescription,
      source: letter.deadLetterSource, number: String(letter.enqueuedSequenceNumber),
    };
  },

  // Requests of two clients and of two receivers of one client, and of one whose neighbour has gone.
  async replies(client, queue, connection) {
    const other = new ServiceBusClient(connection);
    const [sender, receivers] = [client.createSender(queue), [client, client, other].map((c) => c.createReceiver(queue))];
    await sender.sendMessages([{ body: "a" }, { body: "b" }, { body: "c" }]);
    const together = await Promise.all(receivers.map((r, i) => r.peekMessages(i + 1, { fromSequenceNumber: Long.ONE })));
    await receivers[1].close();
    const [locked] = await receive(receivers[0], 1);
    await receivers[0].renewMessageLock(locked);
    await other.close();
    const alone = await receivers[0].peekMessages(9, { fromSequenceNumber: Long.ONE });
    await receivers[0].completeMessage(locked);
    return { together: together.map((m) => m.length), alone: alone.length };
  },

  async withoutId(client, queue) {
    await client.createSender(queue).sendMessages([{ body: "x", subject: "s" }, { body: "y" }]);
    const receiver = client.createReceiver(queue);
    const found = await receive(receiver, 2);
    for (const message of found) await receiver.completeMessage(message);
    return { ids: found.map((m) => m.messageId), subject: found[0].subject, left: (await receiver.peekMessages(1)).length };
  },

  // Closing and asking for less than there is: both drain what credit is left.
  async drain(client, queue) {
    const started = Date.now();
    const sender = client.createSender(queue);
    await sender.sendMessages(Array.from({ length: 40 }, (_, i) => ({ body: i })));
    const first = client.createReceiver(queue);
    let seen = 0;
    await new Promise((resolve) => {
      first.subscribe(
        { processMessage: async () => { seen += 1; if (seen === 5) resolve(); }, processError: async () => {} },
        { maxConcurrentCalls: 2 },
      );
    });
    await first.close();
    const second = client.createReceiver(queue);
    const rest = await receive(second, 40 - seen);
    for (const message of rest) await second.completeMessage(message);
    const none = await second.receiveMessages(5, { maxWaitTimeInMs: 500 });
    await second.close();
    return { all: seen + rest.length, counts: [...new Set(rest.map((m) => m.deliveryCount))], none: none.length, seconds: (Date.now() - started) / 1000 };
  },

  async properties(client, queue) {
    const [sender, receiver] = [client.createSender(queue), client.createReceiver(queue)];
    const dead = client.createReceiver(queue, { subQueueType: "deadLetter" });
    await sender.sendMessages({ body: "x", applicationProperties: { kept: true, tries: 0 } });
    let [message] = await receive(receiver, 1);
    await receiver.abandonMessage(message, { tries: 1, why: "busy" });
    [message] = await receive(receiver, 1);
    const abandoned = message.applicationProperties;
    await receiver.deferMessage(message, { deferred: 1.5 });
    [message] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    const deferred = message.applicationProperties;
    await receiver.deadLetterMessage(message, { dead: "yes" });
    [message] = await receive(dead, 1);
    await dead.completeMessage(message);
    return { abandoned, deferred, dead: message.applicationProperties, reason: message.deadLetterReason ?? null };
  },

  async deadLetter(client, queue) {
    const [sender, receiver] = [client.createSender(queue), client.createReceiver(queue)];
    const dead = client.createReceiver(queue, { subQueueType: "deadLetter" });
    await sender.sendMessages({ body: "x" });
    const [message] = await receive(receiver, 1);
    await receiver.deadLetterMessage(message, { deadLetterReason: "r", deadLetterErrorDescription: "d", more: 1 });
    const [letter] = await receive(dead, 1);
    await dead.completeMessage(letter);
    return [letter.deadLetterReason, letter.deadLetterErrorDescription, letter.applicationProperties.more];
  },

  async schedule(client, queue) {
    const [sender, receiver] = [client.createSender(queue), client.createReceiver(queue)];
    const at = new Date(Date.now() + 4000);
    const [number, cancelled] = await sender.scheduleMessages([{ body: "scheduled" }, { body: "cancelled" }], at);
    await sender.cancelScheduledMessages(cancelled);
    await sender.sendMessages([{ body: "first" }, { body: "second" }]);
    await new Promise((resolve) => setTimeout(resolve, at - Date.now() + 500));
    const found = await receive(receiver, 3);
    for (const message of found) await receiver.completeMessage(message);
    const numbers = found.map((m) => m.sequenceNumber.toNumber());
    return {
      bodies: found.map((m) => m.body), ascending: numbers.every((n, i) => !i || n > numbers[i - 1]),
      renumbered: numbers[2] !== number.toNumber(),
    };
  },

  async sessions(client, queue) {
    const refusal = (accepted) => accepted.then(() => "accepted", (error) => [error.code, error.message]);
    return { next: await refusal(client.acceptNextSession(queue)), named: await refusal(client.acceptSession(queue, "s")) };
  },

  async transferred(client, topic) {
    const sender = client.createSender(topic);
    await sender.sendMessages([{ body: { n: 1 }, subject: "paid", applicationProperties: { total: 7 } }, { body: { n: 2 } }]);
    const [forwarded, direct] = [client.createReceiver(`${topic}.billing`), client.createReceiver(topic, "audit")];
    const [copy] = await receive(forwarded, 1);
    await forwarded.completeMessage(copy);
    const both = await receive(direct, 2);
    for (const message of both) await direct.completeMessage(message);
    return { copy: copy.body, left: (await forwarded.peekMessages(1)).length, both: both.map((m) => m.body) };
  },
};

async function main([name, connection, entity]) {
  const client = new ServiceBusClient(connection, { retryOptions: { maxRetries: 0, timeoutInMs: 10000 } });
  try {
    console.log(JSON.stringify(await scenarios[name](client, entity, connection)));
  } finally {
    await client.close();
  }
}

main(process.argv.slice(2)).catch((error) => { console.error(error); process.exit(1); });
