# One image for every Container Apps job; what it does is in the arguments: run JOB --scheduled, recover --work,
# work HANDLER. tests/infra/test_image.py carries out these steps without Docker.
FROM python:3.13-slim

ENV PYTHONUNBUFFERED=1
ENV PYTHONDONTWRITEBYTECODE=1
WORKDIR /app

COPY requirements.txt constraints.txt ./
RUN python -m pip install --no-cache-dir --disable-pip-version-check --no-input --compile -r requirements.txt

COPY runonce runonce
COPY jobs jobs
# Without bytecode every execution would compile the toolkit anew: the user below may not write here.
RUN python -m compileall -q --invalidation-mode unchecked-hash runonce jobs

RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin runonce
USER 10001

# In this form Python is process 1 itself, so SIGTERM reaches it and not a shell that would drop it.
ENTRYPOINT ["python", "-m", "runonce"]
