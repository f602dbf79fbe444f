# One image for every Container Apps job; what it does is in the arguments: run JOB --scheduled, recover --work,
# work HANDLER. tests/infra/test_image.py carries out these steps without Docker.
#
# Pinned, so that two builds of one commit are the same; give another where your registry mirrors it:
# --build-arg BASE_IMAGE=myregistry.azurecr.io/python:3.13-slim
ARG BASE_IMAGE=python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
FROM ${BASE_IMAGE}

ENV PYTHONUNBUFFERED=1
ENV PYTHONDONTWRITEBYTECODE=1
WORKDIR /app

COPY requirements.txt constraints.txt ./
RUN python -m pip install --no-cache-dir --disable-pip-version-check --no-input --compile -r requirements.txt

# What there is to copy is said in .dockerignore, in one place.
COPY . .
# Without bytecode every execution would compile the toolkit anew: the user below may not write here.
RUN python -m compileall -q --invalidation-mode unchecked-hash .

RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin runonce
USER 10001

# In this form Python is process 1 itself, so SIGTERM reaches it and not a shell that would drop it. One that comes
# before Python listens would be dropped as well; blocked, it waits until it does (runonce/early.py).
ENTRYPOINT ["env", "--block-signal=TERM", "python", "-m", "runonce"]
