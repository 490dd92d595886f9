# Copyright the gpu-dra-driver authors.
# SPDX-License-Identifier: Apache-2.0
#
#   docker build -f deployments/images/dra-kubelet-plugin.Dockerfile \
#     --build-arg VERSION=v0.1.0 -t gpu-dra-driver/dra-kubelet-plugin:v0.1.0 .
#
# The same image as `go -C deployments run ./images --only dra-kubelet-plugin`.
# nvidia-cdi-hook runs on the node and uses the node's C library, so the builder's
# distribution bounds how old a node may be (glibc 2.34 with this one).
FROM golang:1.26-bookworm AS build
ARG VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ENV CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" GOFLAGS=-buildvcs=false
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    go build -trimpath -tags=netgo,osusergo,grpcnotrace \
      -ldflags="-s -w -X main.version=${VERSION} '-extldflags=-Wl,-z,lazy'" \
      -o /out/dra-kubelet-plugin ./cmd/dra-kubelet-plugin
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    hook=github.com/NVIDIA/nvidia-container-toolkit && \
    go build -trimpath -tags=netgo,osusergo,grpcnotrace \
      -ldflags="-s -w -X ${hook}/internal/info.version=$(go list -m -f '{{.Version}}' ${hook}) '-extldflags=-Wl,-z,lazy'" \
      -o /out/nvidia-cdi-hook github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook

# glibc, libgcc and what a driver's libnvidia-ml.so.1 is linked to; no shell.
FROM gcr.io/distroless/cc-debian12
COPY --from=build /out/nvidia-cdi-hook /usr/bin/nvidia-cdi-hook
COPY --from=build /out/dra-kubelet-plugin /usr/bin/dra-kubelet-plugin
USER 0:0
ENTRYPOINT ["/usr/bin/dra-kubelet-plugin"]
