"""Imports a file of orders for each message, and has an invoice sent for each order.

    runonce upload orders.csv orders/2026-11.csv
    runonce enqueue import_orders --body '{"import": "2026-11", "file": "orders/2026-11.csv"}'

A file may take long, so the position is kept after each batch: whoever takes over goes on from there. The invoices
of a batch are messages to `send_invoice`. They are kept with the position and sent after it, under ids made from
this message; when a host dies in between, they are sent again as the same messages.
"""

from __future__ import annotations

import hashlib

from jobs._bodies import name
from jobs.send_invoice import send_invoice
from runonce import InputError, Message, handler

from ._invoices import amount, read_invoices

BATCH = 50
"""Orders between checkpoints."""


@handler(
    queue="import-orders", key="import", name="import_orders", retries=3, retry_delay=60, max_runtime=1500
)
def import_orders(message: Message) -> None:
    """Import one file of orders."""
    file = name(message, "file")
    text = message.blobs.read_text(file)
    orders = read_invoices(text, f"Handler {message.handler}, blob {file!r}")
    # A position means nothing in a file that was changed between two attempts, and half of each file would be
    # imported. So the content is kept as well.
    content = hashlib.sha256(text.encode()).hexdigest()
    begun = message.checkpoint.load({"content": content})["content"]
    if begun != content:
        raise InputError(
            f"Handler {message.handler}: blob {file!r} has changed since the import {message.key!r} began; put the old "
            f"file back, and give the new one an import of its own."
        )
    message.checkpoint.save({"content": content})
    for batch in message.batches(orders, size=BATCH):
        for order in batch:
            total = amount(order.cents).replace(",", "")
            message.enqueue(
                send_invoice, {"invoice_id": order.number, "customer": order.customer, "amount": total}
            )
    total = amount(sum(order.cents for order in orders)).replace(",", "")
    message.commit({"imported": {"file": file, "orders": len(orders), "total": total}})
