# The SGLang runner. Built by `make image-sglang`, from the repository's root, with BuildKit.
#
# Any base with Python 3.10 or later and pip will do; what it lacks of the requirements is added beside it.
ARG BASE=docker.io/lmsysorg/sglang:v0.5.23
FROM ${BASE}
ARG VARIANT=cuda
# Wheels of the whole set make the build independent of any network; an empty folder leaves it to pip's index.
RUN --mount=type=bind,source=docker/install_missing.py,target=/build/install_missing.py \
    --mount=type=bind,source=runners/sglang,target=/build/runner \
    --mount=type=bind,source=build/wheels/sglang,target=/build/wheels \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf,required=false \
    python3 /build/install_missing.py /build/runner/requirements-${VARIANT}.txt /opt/wattdock/packages /build/wheels
COPY --chmod=755 proto /opt/wattdock/proto
COPY --chmod=755 runners/common /opt/wattdock/runners/common
COPY --chmod=755 runners/sglang/*.py /opt/wattdock/runners/sglang/
ENV PYTHONPATH=/opt/wattdock/proto:/opt/wattdock/runners/common:/opt/wattdock/runners/sglang:/opt/wattdock/packages
ENTRYPOINT ["python3", "-m", "wattdock_runner"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="wattdock runner: SGLang" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      wattdock.variant="${VARIANT}"
