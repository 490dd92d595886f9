# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
#   docker build -f deployments/images/dra-controller.Dockerfile \
#     --build-arg VERSION=v0.1.0 -t gpu-dra-driver/dra-controller:v0.1.0 .
#
# The same image as `go -C deployments run ./images --only dra-controller`.
FROM golang:1.26-bookworm AS build
ARG VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ENV CGO_ENABLED=0 GOFLAGS=-buildvcs=false
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    go build -trimpath -tags=netgo,osusergo -ldflags="-s -w -X main.version=${VERSION}" -o /out/dra-controller ./cmd/dra-controller

FROM scratch
COPY --from=build /out/dra-controller /usr/bin/dra-controller
USER 65532:65532
ENTRYPOINT ["/usr/bin/dra-controller"]
