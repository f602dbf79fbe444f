"""Fetches exchange rates every 15 minutes, as an async job.

From EXCHANGE_RATES_URL where that is set; else from the blob rates/source.json, where something else puts
them; else from the sample beside this file, so that the job runs on a fresh checkout. The result is written
through the fenced writer: an older run that was held up cannot put old rates over new ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import urllib.request
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

from runonce import InputError, PermanentError, Run, scheduled

URL = "EXCHANGE_RATES_URL"
SOURCE, LATEST = "rates/source.json", "rates/latest.json"
SAMPLE = Path(__file__).parent / "data" / "rates.json"
BASE = "EUR"
CURRENCY = re.compile(r"[A-Z]{3}")
RATE = re.compile(r"\d{1,9}(\.\d{1,12})?", re.ASCII)
TIMEOUT = 10.0
LARGEST = 1_000_000
"""Bytes of an answer that are read."""


@scheduled(
    "0 */15 * * * *", name="exchange_rates", misfire="skip", retries=3, retry_delay=20, max_runtime=120
)
async def exchange_rates(run: Run) -> None:
    """Keep rates/latest.json up to date."""
    data, source = await fetch(run)
    rates = checked(data, f"Job {run.job}, {source}")
    latest = {"base": BASE, "fire_time": run.fire_time.isoformat(), "rates": rates}
    text = json.dumps(latest, indent=2) + "\n"
    await asyncio.to_thread(run.blobs.write, LATEST, text, content_type="application/json")
    run.log.info("%d rates from %s", len(rates), source)


async def fetch(run: Run) -> tuple[bytes, str]:
    """The rates as they come, and from where."""
    if url := os.environ.get(URL, "").strip():
        return await asyncio.to_thread(download, url, run.job), URL
    if await asyncio.to_thread(run.blobs.exists, SOURCE):
        return await asyncio.to_thread(run.blobs.read, SOURCE), f"blob {SOURCE!r}"
    return await asyncio.to_thread(SAMPLE.read_bytes), f"the sample {SAMPLE.name}"


def download(url: str, job: str) -> bytes:
    """What the URL answers.

    Raises:
        PermanentError: It is not an http or https URL. The value is not repeated, it may hold a key.
        InputError: There was no usable answer; the job tries again.
    """
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise PermanentError(
            f"Job {job}: {URL} is not an http or https URL; set it to one such as https://example.com/rates.json."
        )
    host = urlsplit(url).hostname
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 - the scheme was checked
            data: bytes = answer.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            f"Job {job}: {host}, which {URL} names, gave no answer ({type(error).__name__}: {error}); "
            f"see whether it is reachable from here."
        ) from error
    if len(data) > LARGEST:
        raise InputError(f"Job {job}: {host} answered with over {LARGEST} bytes; {URL} names something else.")
    return data


def checked(data: bytes, source: str) -> dict[str, str]:
    """The rates by currency, as exact text, from {"base": "EUR", "rates": {"USD": 1.0842}}.

    Raises:
        InputError: The content is not so; the message names its source, the value and the remedy.
    """
    form = '{"base": "EUR", "rates": {"USD": 1.0842}}'
    try:
        # As text, never as float: a rate keeps the digits it came with.
        content = json.loads(data, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: this is not valid JSON ({error}); it must be like {form}.") from error
    rates = content.get("rates") if isinstance(content, dict) else None
    if not isinstance(rates, dict) or not rates or content.get("base") != BASE:
        raise InputError(
            f'{source}: it must be like {form}, with "{BASE}" as its base and one rate at least.'
        )
    for currency, rate in rates.items():
        if not CURRENCY.fullmatch(currency):
            raise InputError(
                f"{source}: {currency!r:.40} is not a currency; write three capital letters, such as USD."
            )
        if not isinstance(rate, str) or not RATE.fullmatch(rate) or not Decimal(rate):
            raise InputError(
                f"{source}, currency {currency}: {rate!r:.40} is not a rate; write a number over 0, such as 1.0842."
            )
    return dict(sorted(rates.items()))
