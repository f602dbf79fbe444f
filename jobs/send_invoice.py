"""Sends an invoice to a customer for each message, once however often the message comes.

    runonce enqueue send_invoice --body '{"invoice_id": "1001", "customer": "19", "amount": "148.18"}'

Two things keep it to once. The row that says the invoice was sent is written in the same transaction as the mark
that the message is done, so there is never the one without the other. And the mail provider is handed a key that
is the same in every attempt: when a host dies after the call and before the transaction, the call is repeated, and
the provider sees that it has sent this one.
"""

from __future__ import annotations

import hashlib

from jobs._bodies import amount, name
from runonce import Message, handler


@handler(queue="send-invoice", key="invoice_id", name="send_invoice", retries=5, retry_delay=10)
def send_invoice(message: Message) -> None:
    """Send one invoice to its customer."""
    invoice, customer, total = (
        name(message, "invoice_id"),
        name(message, "customer"),
        amount(message, "amount"),
    )
    receipt = send_mail(customer, f"Invoice {invoice} over {total}", message.idempotency_key)
    message.commit({"sent": {"invoice": invoice, "customer": customer, "amount": total, "receipt": receipt}})


def send_mail(customer: str, subject: str, key: str) -> str:
    """Where your mail provider's client goes; here it only gives a receipt.

    Args:
        customer: Whom to send it to.
        subject: What it is about.
        key: Hand it to the provider as its idempotency key.
    """
    return hashlib.sha256(f"{key}:{customer}:{subject}".encode()).hexdigest()[:16]
