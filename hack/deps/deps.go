//go:build deps

package deps

import (
	_ "github.com/NVIDIA/go-nvml/pkg/nvml"
	_ "github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	_ "github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/go-containerregistry/pkg/v1/tarball"
	_ "github.com/google/go-containerregistry/pkg/v1/mutate"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "golang.org/x/tools/txtar"
	_ "github.com/spf13/pflag"
	_ "golang.org/x/sys/unix"
	_ "google.golang.org/grpc/health"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/kubernetes/fake"
	_ "k8s.io/client-go/tools/record"
	_ "k8s.io/client-go/tools/events"
	_ "k8s.io/component-base/version"
	_ "k8s.io/dynamic-resource-allocation/deviceattribute"
	_ "k8s.io/dynamic-resource-allocation/kubeletplugin"
	_ "k8s.io/dynamic-resource-allocation/resourceclaim"
	_ "k8s.io/dynamic-resource-allocation/structured"
	_ "k8s.io/kubelet/pkg/apis/dra/v1"
	_ "k8s.io/kubelet/pkg/apis/podresources/v1"
	_ "k8s.io/klog/v2"
	_ "sigs.k8s.io/yaml"
	_ "tags.cncf.io/container-device-interface/pkg/cdi"
)
