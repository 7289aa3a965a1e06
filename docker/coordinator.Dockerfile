# The coordinator, for machines where nothing is to be installed. Built by `make image-coordinator`.
#
# It starts its runners' containers on the host's engine, so it needs that engine's socket, and every folder it works
# with under the path that it has on the host (the engine looks for them there); see docs/containers.md.
ARG BASE=docker.io/library/python:3.12-slim-bookworm
FROM ${BASE}
RUN --mount=type=bind,source=docker/install_missing.py,target=/build/install_missing.py \
    --mount=type=bind,source=docker/coordinator.lock,target=/build/coordinator.lock \
    --mount=type=bind,source=build/wheels/coordinator,target=/build/wheels \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf,required=false \
    python3 /build/install_missing.py /build/coordinator.lock /opt/wattdock/packages /build/wheels
COPY --chmod=755 proto /opt/wattdock/proto
COPY --chmod=755 runners /opt/wattdock/runners
COPY --chmod=755 coordinator /opt/wattdock/coordinator
ENV PYTHONPATH=/opt/wattdock/coordinator:/opt/wattdock/proto:/opt/wattdock/packages \
    NVIDIA_DRIVER_CAPABILITIES=utility
ENTRYPOINT ["python3", "-P", "-m", "wattdock"]
ARG VERSION=unknown
ARG REVISION=unknown
ENV WATTDOCK_REVISION=${REVISION}
LABEL org.opencontainers.image.title="wattdock coordinator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
