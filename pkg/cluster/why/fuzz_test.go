// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/why"
)

// FuzzAsk mutates objects that an API server could not return, and manifests that people write.
func FuzzAsk(f *testing.F) {
	e := newEnv(f)
	e.node(f, "n1", "a30", 1)
	slice, err := json.Marshal(e.Slices)
	if err != nil {
		f.Fatal(err)
	}
	large := claim("large", gpus, 1)
	large.Annotations = map[string]string{"text": strings.Repeat("x", 1<<20)}
	text, err := json.Marshal(large)
	if err != nil {
		f.Fatal(err)
	}
	for _, manifest := range []string{
		string(text), "", "null", "[]", "--- {", `{"kind":"ResourceClaim","spec":{"devices":{"requests":[{"name":"a"}]}}}`,
		`{"kind":"ResourceClaim","spec":{"devices":{"requests":[{"name":"a","exactly":{"deviceClassName":"gpu.nvidia.com","count":-1,"selectors":[{}]}}]}}}`,
		`{"kind":"ResourceClaim","spec":{"devices":{"constraints":[{}],"requests":[{"name":"a","exactly":{"deviceClassName":"gpu.nvidia.com","count":9223372036854775807}}]}}}`,
		`{"kind":"ResourceClaim","spec":{"devices":{"requests":[{"name":"a","firstAvailable":[{"name":"b","deviceClassName":"gpu.nvidia.com"}]}]}}}`,
		`{"kind":"ResourceClaim","spec":{"devices":{"requests":[{"name":"a","exactly":{"deviceClassName":"gpu.nvidia.com","allocationMode":"All","capacity":{"requests":{"memory":"1e30"}}}}]}}}`,
		`{"kind":"CronJob","spec":{"jobTemplate":{"spec":{"template":{"spec":{"containers":[{"name":"c","resources":{"limits":{"nvidia.com/gpu":"-5"}}}]}}}}}}`,
		`{"kind":"Pod","spec":{"resourceClaims":[{"name":"a"}],"nodeSelector":{"":"é"}}}`,
	} {
		f.Add(manifest, string(slice))
	}
	plain := `{"kind":"ResourceClaim","spec":{"devices":{"requests":[{"name":"a","exactly":{"deviceClassName":"gpu.nvidia.com","count":1}}]}}}`
	for _, change := range [][2]string{
		{`"value":"1"`, `"value":"-1"`}, {`"value":"`, `"value":"9e99`}, {`"resourceSliceCount":`, `"resourceSliceCount":-`},
		{`"counterSet":"`, `"counterSet":"no-`}, {`"name":"gpu-`, `"name":"`}, {`"nodeName":"n1"`, `"allNodes":true`},
		{`"nodeName":"n1"`, `"nodeSelector":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"?"}]}]}`}, {`"string":`, `"version":`},
	} {
		f.Add(plain, strings.ReplaceAll(string(slice), change[0], change[1]))
	}
	f.Fuzz(func(t *testing.T, manifest, slices string) {
		m, err := why.ReadManifest(strings.NewReader(manifest), "team-a")
		if err != nil {
			return
		}
		c := e.Cluster
		c.Slices = nil
		var decoded []*resourceapi.ResourceSlice
		if json.Unmarshal([]byte(slices), &decoded) == nil {
			for _, s := range decoded {
				if s != nil {
					c.Slices = append(c.Slices, pool.Unshared(s))
				}
			}
		}
		m.AddTo(&c)
		for _, s := range m.Subjects() {
			answer := why.Ask(t.Context(), &c, s, why.Options{Driver: slicetest.Driver, Devices: true, Limit: time.Second})
			if answer.Summary == "" || answer.Result == "" {
				t.Errorf("no sentence for %s", s)
			}
			_ = fmt.Sprint(answer)
		}
	})
}
