# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
#   docker build -f deployments/images/mps-supervisor.Dockerfile \
#     --build-arg VERSION=v0.1.0 -t gpu-dra-driver/mps-supervisor:v0.1.0 .
#
# The same image as `go -C deployments run ./images --only mps-supervisor`. The MPS programs are the driver's, on the node.
FROM golang:1.26-bookworm AS build
ARG VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ENV CGO_ENABLED=0 GOFLAGS=-buildvcs=false
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    go build -trimpath -tags=netgo,osusergo -ldflags="-s -w -X main.version=${VERSION}" -o /out/mps-supervisor ./cmd/mps-supervisor

FROM scratch
COPY --from=build /out/mps-supervisor /usr/bin/mps-supervisor
USER 0:0
ENTRYPOINT ["/usr/bin/mps-supervisor"]
