// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/gpu"
)

// TestGPU_EarlierVersion_ReadsInterconnect reads the key that earlier versions of the plugin wrote.
func TestGPU_EarlierVersion_ReadsInterconnect(t *testing.T) {
	const earlier = `{"bootID":"b","pciAddress":"0000:1b:00.0","uuid":"GPU-0","found":0,"set":1,
		"wiring":{"links":[{"index":3,"peer":"switch"}],"fabric":{"state":"ready"}}}`
	want := gpu.Interconnect{Links: []gpu.Link{{Index: 3, Peer: gpu.PeerSwitch}}, Fabric: gpu.Fabric{State: gpu.FabricReady}}
	var got GPU
	if err := json.Unmarshal([]byte(earlier), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.Interconnect); diff != "" {
		t.Errorf("interconnect (-want +got):\n%s", diff)
	}
}
