// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/gpu"
)

// TestStrategies_Rows_AreComplete compares the table with the parameters and with the settings file.
func TestStrategies_Rows_AreComplete(t *testing.T) {
	names := map[string]bool{}
	for _, s := range strategies {
		for what, name := range map[string]string{
			"name": string(s.Name), "section": s.Section, "isolation": s.Isolation, "executor": s.Executor,
		} {
			if name == "" || names[what+" "+name] {
				t.Errorf("%s: the %s %q is empty or that of another strategy", s.Name, what, name)
			}
			names[what+" "+name] = true
		}
		if _, err := v1beta1.Decode(fmt.Appendf(nil,
			`{"apiVersion":%q,"kind":%q,"sharing":{"strategy":%q}}`, v1beta1.GroupVersion, v1beta1.KindGPUConfig, s.Name)); err != nil {
			t.Errorf("a claim cannot name it: %v", err)
		}
		if parsed, _, err := Parse(fmt.Appendf(nil, "sharing: {strategy: %s}", s.Name)); err != nil || parsed.common.Strategy != s.Name {
			t.Errorf("the settings cannot name it: %+v, %v", parsed, err)
		}
		parsed, _, err := Parse(fmt.Appendf(nil, "sharing: {%s: {replicas: 2}}", s.Section))
		if err != nil || len(parsed.rules) != 1 || parsed.rules[0].policy.Strategy != s.Name {
			t.Errorf("the settings lack its section: %+v, %v", parsed, err)
		}
	}
	if parameters := reflect.TypeFor[v1beta1.Sharing]().NumField() - 1; parameters != len(strategies) {
		t.Errorf("there are parameters of %d strategies, and %d rows", parameters, len(strategies))
	}
	_, _, err := Parse([]byte("sharing: {strategy: Other}"))
	for _, s := range strategies {
		if err == nil || !strings.Contains(err.Error(), string(s.Name)) {
			t.Errorf("an unknown strategy gives %v, want %s in it", err, s.Name)
		}
	}
	if got := Default(Policy{}, gpu.GPU{}, false); got.Name == "" || got.Daemon || got.Limits {
		t.Errorf("a GPU and a node that support nothing share by %+v", got)
	}
}

// TestStrategies_OtherPackages_AskTheTable finds decisions by a strategy's name outside of the table.
func TestStrategies_OtherPackages_AskTheTable(t *testing.T) {
	const root = "../../.."
	may := []string{
		"api/deviceclass/v1beta1/decode.go", "api/deviceclass/v1beta1/types.go", "pkg/claim/sharing/parse.go", "pkg/claim/sharing/strategy.go",
		"pkg/claim/executor/mps/executor.go",   // Which devices are its own.
		"pkg/cluster/nodelabels/nodelabels.go", // The label mps.capable of feature discovery.
	}
	var names []string
	for _, dir := range []string{"api", "cmd", "internal", "pkg"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(filepath.Dir(path), "test") {
				return err
			}
			data, err := os.ReadFile(path)
			file, _ := filepath.Rel(root, path)
			if strings.Contains(string(data), "StrategyMPS") || strings.Contains(string(data), "StrategyTimeSlicing") {
				names = append(names, file)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(may)
	if !slices.Equal(names, may) {
		t.Errorf("strategies are named in %q, want %q", names, may)
	}
}
