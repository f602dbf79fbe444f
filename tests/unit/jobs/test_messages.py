from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from runonce.errors import TransportError
from runonce.hosts.discover import discover
from runonce.messages.effects import read_effects
from runonce.testing import Workbench
from runonce.transports.protocols import Delivery
from runonce.transports.settlement import Complete, DeadLetter, Reschedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runonce.messages.definition import Handler
    from runonce.transports.protocols import Outgoing

ROOT = Path(__file__).resolve().parents[3]
shipped, examples = discover(ROOT / "jobs"), discover(ROOT / "examples")
send_invoice = shipped.handlers["send_invoice"]
reindex_tenant, import_orders = (examples.handlers[name] for name in ("reindex_tenant", "import_orders"))
# Taken now: each `discover` imports the files anew.
send_module: Any = sys.modules[send_invoice.body.__module__]
import_module: Any = sys.modules[import_orders.body.__module__]
INVOICE = {"invoice_id": "1001", "customer": "19", "amount": "148.18"}


@pytest.fixture
def bench() -> Workbench:
    return Workbench()


def effects(bench: Workbench, handler: Handler) -> list[dict[str, Any]]:
    return list(read_effects(bench.stores.claims, bench.settings.namespace, handler.name))


def test_files_that_import_each_other_define_each_handler_once() -> None:
    """import_orders sends to the very handler that is discovered in send_invoice's own file."""
    assert (shipped.broken, examples.broken) == ([], [])
    assert import_module.send_invoice is send_invoice
    assert examples.handlers["send_invoice"] is send_invoice
    assert (shipped.files["send_invoice"].name, examples.files["import_orders"].name) == (
        "send_invoice.py",
        "import_orders.py",
    )


# -- send_invoice ------------------------------------------------------------------------------------------------


def test_an_invoice_is_sent_once(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delivered three times, it is sent once, and its row says what was sent."""
    keys: list[str] = []
    send = send_module.send_mail

    def counting(customer: str, subject: str, key: str) -> str:
        keys.append(key)
        return str(send(customer, subject, key))

    monkeypatch.setattr(send_module, "send_mail", counting)
    for count in (1, 2, 3):
        assert isinstance(bench.deliver(send_invoice, INVOICE, delivery_count=count), Complete)
    assert len(keys) == 1
    [row] = effects(bench, send_invoice)
    assert {name: row[name] for name in ("name", "key", "invoice", "customer", "amount")} == {
        "name": "sent",
        "key": "1001",
        "invoice": "1001",
        "customer": "19",
        "amount": "148.18",
    }


def test_a_provider_that_hangs_up_is_called_again_with_the_same_key(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that failed after the call is retried under the key of the first."""
    keys: list[str] = []

    def hanging_up(_customer: str, _subject: str, key: str) -> str:
        keys.append(key)
        if len(keys) == 1:
            raise ConnectionError("the provider hung up")
        return "receipt"

    monkeypatch.setattr(send_module, "send_mail", hanging_up)
    settlement = bench.deliver(send_invoice, INVOICE)
    assert isinstance(settlement, Reschedule)
    bench.clock.advance(settlement.delay)
    assert isinstance(bench.deliver(send_invoice, INVOICE, reschedules=1), Complete)
    assert len(set(keys)) == 1
    assert len(keys) == 2
    assert len(effects(bench, send_invoice)) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"amount": 148.18}, "field 'amount' is 148.18; write text of digits"),
        ({"amount": "148,18"}, "field 'amount' is '148,18'"),
        ({"amount": "-1"}, "field 'amount' is '-1'"),
        ({"customer": ""}, "field 'customer' is ''; write 1 to 64 letters"),
        ({"customer": ["x" * 80]}, "…; write 1 to 64 letters"),
        ({"customer": "a b"}, "field 'customer' is 'a b'"),
        ({"customer": "x/../../prod/acme"}, "no part empty or of dots"),
    ],
    ids=["float", "comma", "negative", "empty", "list", "space", "path"],
)
def test_a_body_that_cannot_be_right_is_put_aside(
    bench: Workbench, change: dict[str, Any], said: str
) -> None:
    """The dead letter's reason names handler, field, value and remedy; nothing was sent."""
    settlement = bench.deliver(send_invoice, INVOICE | change)
    assert isinstance(settlement, DeadLetter)
    assert settlement.reason == "InvalidBody"
    assert "Handler send_invoice" in settlement.description
    assert said in settlement.description
    assert effects(bench, send_invoice) == []


def test_a_field_that_is_missing_is_named(bench: Workbench) -> None:
    """A body without an amount is put aside with the field's name."""
    settlement = bench.deliver(send_invoice, {"invoice_id": "1", "customer": "2"})
    assert isinstance(settlement, DeadLetter)
    assert "no field 'amount'" in settlement.description


# -- reindex_tenant ----------------------------------------------------------------------------------------------


def test_an_index_is_made_of_a_tenants_documents(bench: Workbench) -> None:
    """Each word leads to its documents, of this tenant alone."""
    bench.put("tenants/acme/a.txt", "Run once, once only")
    bench.put("tenants/acme/b.txt", "only Zürich")
    bench.put("tenants/other/c.txt", "once")
    assert isinstance(bench.deliver(reindex_tenant, {"change": "c-1", "tenant": "acme"}), Complete)
    assert json.loads(bench.blobs()["search/acme.json"]) == {
        "once": ["a.txt"],
        "only": ["a.txt", "b.txt"],
        "run": ["a.txt"],
        "zürich": ["b.txt"],
    }


def test_changes_of_one_tenant_take_turns(bench: Workbench) -> None:
    """While another host has the tenant's lock the message goes back to the queue; another tenant's is handled."""
    held = bench.stores.leases.acquire(f"{bench.settings.namespace}/lock/tenant%3Aacme", "other", 60)
    assert held
    impatient = replace(reindex_tenant, lock_wait=0.0)
    settlement = bench.deliver(impatient, {"change": "c-1", "tenant": "acme"})
    assert isinstance(settlement, Reschedule)
    assert "lock" in settlement.reason
    assert isinstance(bench.deliver(reindex_tenant, {"change": "c-2", "tenant": "other"}), Complete)


# -- import_orders -----------------------------------------------------------------------------------------------

BODY = {"import": "2026-11", "file": "orders/2026-11.csv"}


def orders(count: int) -> str:
    rows = [f"{n},7,2026-11-01,Spain,10.0{n % 10}\n" for n in range(1, count + 1)]
    return "InvoiceId,CustomerId,InvoiceDate,BillingCountry,Total\n" + "".join(rows)


def test_each_order_becomes_an_invoice_to_send(bench: Workbench) -> None:
    """One follow-up an order, and a row that sums up the import."""
    bench.put("orders/2026-11.csv", orders(120))
    assert isinstance(bench.deliver(import_orders, BODY), Complete)
    sent = bench.sender.sent
    assert [s.json["invoice_id"] for s in sent] == [str(n) for n in range(1, 121)]
    assert {s.queue for s in sent} == {"send-invoice"}
    assert len({s.message_id for s in sent}) == 120
    assert sent[0].json == {"invoice_id": "1", "customer": "7", "amount": "10.01"}
    [row] = effects(bench, import_orders)
    assert (row["orders"], row["total"]) == (120, "1205.40")
    for message in sent:
        assert isinstance(bench.deliver(send_invoice, message.body), Complete)


def test_an_import_that_fails_goes_on_from_its_last_batch(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Follow-ups of finished batches are sent with them, and each order's is one message, however often sent."""
    bench.put("orders/2026-11.csv", orders(120))
    amount = import_module.amount
    calls: list[int] = []

    def failing(cents: int) -> str:
        calls.append(cents)
        if len(calls) == 75:
            raise ConnectionError("as if")
        return str(amount(cents))

    monkeypatch.setattr(import_module, "amount", failing)
    settlement = bench.deliver(import_orders, BODY)
    assert isinstance(settlement, Reschedule)
    assert [s.json["invoice_id"] for s in bench.sender.sent] == [str(n) for n in range(1, 51)]
    bench.clock.advance(settlement.delay)
    assert isinstance(bench.deliver(import_orders, BODY, reschedules=1), Complete)
    # What was sent with its batch has left the row, so that it is not sent once more.
    sent = {s.message_id: s.json["invoice_id"] for s in bench.sender.sent}
    assert list(sent.values()) == [str(n) for n in range(1, 121)]
    assert len(bench.sender.sent) == 120


def test_a_broker_that_is_away_during_an_import_delays_its_invoices(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be sent with its batch is sent when the message is redelivered, which is no failure of it."""
    bench.put("orders/2026-11.csv", orders(120))
    send = bench.sender.send
    refused: list[int] = []

    def away(entity: str, messages: Sequence[Outgoing]) -> None:
        if not refused:
            refused.append(len(messages))
            raise TransportError("connection refused")
        send(entity, messages)

    monkeypatch.setattr(bench.sender, "send", away)
    settlement = bench.deliver(import_orders, BODY)
    assert isinstance(settlement, Reschedule)
    bench.clock.advance(settlement.delay)
    assert isinstance(bench.deliver(import_orders, BODY, reschedules=1), Complete)
    assert refused == [50]
    assert [s.json["invoice_id"] for s in bench.sender.sent] == [str(n) for n in range(1, 121)]


def test_a_file_that_changed_under_an_import_is_refused(bench: Workbench) -> None:
    """Half of the one file and half of the other would be worse than none; the error says what to do."""
    bench.put("orders/2026-11.csv", orders(120))
    host_died = bench.deliverer.begin(import_orders, _delivery())
    host_died.message.checkpoint.save({"content": "another"})  # type: ignore[union-attr]
    bench.clock.advance(120)
    settlement = bench.deliver(import_orders, BODY, delivery_count=2)
    assert isinstance(settlement, Reschedule)
    assert "has changed since the import '2026-11' began" in settlement.reason
    assert bench.sender.sent == []


def _delivery() -> Any:
    return Delivery(json.dumps(BODY, separators=(",", ":")).encode(), "import-orders:2026-11")


def test_a_file_with_a_bad_row_is_put_aside_before_anything_is_sent(bench: Workbench) -> None:
    """Line, column, value and remedy are in the dead letter's reason."""
    bench.put("orders/2026-11.csv", orders(3).replace("10.02", "ten"))
    settlement = bench.deliver(import_orders, BODY)
    assert isinstance(settlement, DeadLetter)
    assert "line 3, column Total: 'ten'" in settlement.description
    assert bench.sender.sent == []
