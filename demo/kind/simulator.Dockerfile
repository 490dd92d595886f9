# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
#   docker build -f demo/kind/simulator.Dockerfile --output type=local,dest=DIR .
#
# The simulator's files, built on the distribution of the plugin's image: the
# plugin loads the library into its own process, with its own C library.
# To pin the compiler, give --build-arg GO_IMAGE=NAME@sha256:DIGEST, as for the images.
ARG GO_IMAGE=golang:1.26-bookworm
FROM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ENV GOFLAGS=-buildvcs=false
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /out/gpusim ./sim/cmd/gpusim
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /out/nvidia-smi ./sim/cmd/nvidia-smi
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=1 go build -trimpath -buildmode=c-shared \
      -ldflags="-s -w -extldflags=-Wl,-soname,libnvidia-ml.so.1" \
      -o /out/libnvidia-ml.so.1 ./sim/libnvidiaml

FROM scratch
COPY --from=build /out/gpusim /gpusim
COPY --from=build /out/nvidia-smi /nvidia-smi
COPY --from=build /out/libnvidia-ml.so.1 /libnvidia-ml.so.1
