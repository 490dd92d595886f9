# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
#   docker build -f deployments/images/probe.Dockerfile -t gpu-dra-driver/probe:dev .
#
# The same image as `go -C deployments run ./images --only probe`.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY test/go.mod test/go.sum ./test/
RUN --mount=type=cache,target=/go/pkg/mod go -C test mod download
COPY . .
ENV CGO_ENABLED=0 GOFLAGS=-buildvcs=false
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    go -C test build -trimpath -tags=netgo,osusergo -ldflags="-s -w" -o /out/probe ./probe

FROM scratch
COPY --from=build /out/probe /usr/bin/probe
USER 65532:65532
ENTRYPOINT ["/usr/bin/probe"]
