"""Rebuilds a tenant's search index for each message: one at a time per tenant, tenants side by side.

    runonce enqueue reindex_tenant --body '{"change": "c-17", "tenant": "acme"}'

Documents are blobs tenants/<tenant>/<name>.txt; the index is search/<tenant>.json. Two changes of one tenant that
come together would each write an index and the slower one win, perhaps with the older documents. The lock makes
them take turns, on whatever hosts they are; the second reads the documents after the first has written.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict

from jobs._bodies import name
from runonce import Message, handler

WORD = re.compile(r"\w{2,40}")


@handler(
    queue="reindex-tenant",
    key="change",
    name="reindex_tenant",
    lock="tenant:{tenant}",
    lock_wait=20,
    retries=3,
    retry_delay=30,
)
def reindex_tenant(message: Message) -> None:
    """Write a tenant's index from its documents."""
    tenant = name(message, "tenant")
    folder = f"tenants/{tenant}/"
    index: defaultdict[str, list[str]] = defaultdict(list)
    documents = message.blobs.names(folder)
    for document in documents:
        message.check()
        for word in words(message.blobs.read_text(document)):
            index[word].append(document.removeprefix(folder))
    text = json.dumps(dict(sorted(index.items())), ensure_ascii=False, indent=1)
    message.blobs.write(f"search/{tenant}.json", text + "\n", content_type="application/json")
    message.log.info("%s: %d words of %d documents", tenant, len(index), len(documents))


def words(text: str) -> list[str]:
    """The words of a document, each once, in order."""
    return sorted({word.lower() for word in WORD.findall(text)})
