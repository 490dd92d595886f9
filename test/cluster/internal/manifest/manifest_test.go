// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/test/cluster/internal/spec"
)

var update = flag.Bool("update", false, "write the goldens")

func TestManifests_EachSpec_MatchGoldens(t *testing.T) {
	plain := spec.Spec{ID: "0badcafe", Dir: "/state", Kubernetes: "v1.37.1", Snapshotter: "overlayfs"}
	featured := plain
	featured.FeatureGates = []string{"DRADeviceTaints=true", "DRAConsumableCapacity=false"}
	featured.Sync = "10s"
	featured.RuntimeConfig = []string{"resource.k8s.io/v1beta1=true", "resource.k8s.io/v1beta2=true"}
	further := plain
	further.Nodes = 2
	further = further.On(2)
	for name, got := range map[string]string{
		"containerd.toml":       Containerd(plain, "/bin/runtime", "/bin/cni"),
		"cni.conflist":          CNI(plain),
		"kubelet.yaml":          Kubelet(plain),
		"kubelet-features.yaml": Kubelet(featured),
		"containerd-2.toml":     Containerd(further, "/bin/runtime", "/bin/cni"),
		"cni-2.conflist":        CNI(further),
		"kubelet-2.yaml":        Kubelet(further),
		"commands-2.txt":        commandLines(further),
		"commands.txt":          commandLines(plain),
		"commands-features.txt": commandLines(featured),
		"kubeconfig.yaml":       Kubeconfig("https://127.0.0.1:1234", []byte("ca"), []byte("cert"), []byte("key")),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name)
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-golden +got; -update writes it)\n%s", diff)
			}
		})
	}
}

func commandLines(s spec.Spec) string {
	var b strings.Builder
	for _, c := range Components(s) {
		fmt.Fprintf(&b, "%s (%s)\n  %s\n", c.Name, c.Health, strings.Join(c.Args, "\n  "))
	}
	return b.String()
}
