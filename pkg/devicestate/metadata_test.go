// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/devicestate"
)

// TestMetadata_SettingChanges_PreparedClaimsKeepTheirs prepares a claim with the setting on and one with it off, and
// starts a plugin with the other setting.
func TestMetadata_SettingChanges_PreparedClaimsKeepTheirs(t *testing.T) {
	e := devicestatetest.New(t)
	set := func(on bool) *process {
		e.Configure = func(o *devicestate.Options) { o.Metadata = on }
		return e.Start()
	}
	mounted := func(uid string) bool {
		t.Helper()
		_, err := os.Stat(e.MetadataFile(uid, 0))
		spec, readErr := os.ReadFile(e.SpecFile(uid))
		e.Must(readErr)
		if mounts := strings.Contains(string(spec), "dra-device-attributes"); mounts != (err == nil) {
			t.Fatalf("claim %s: the spec mounts the file: %v; %v", uid, mounts, err)
		}
		return err == nil
	}
	p := set(true)
	e.Claim("with", "0").Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: "mine"}
	e.Snapshot.GPUs[0].ProductName = "NVIDIA H100"
	e.Prepare(p, "with")
	p.Crash()
	p = set(false)
	e.Claim("without", "1")
	e.Prepare(p, "without")
	for _, on := range []bool{true, false} {
		p.Crash()
		p = set(on)
		e.Must(os.Remove(e.SpecFile("with")))
		e.Must(os.Remove(e.MetadataFile("with", 0)))
		e.Must(os.Remove(e.SpecFile("without")))
		e.Recover(p)
		for _, again := range []bool{false, true} {
			if again {
				e.Prepare(p, "with")
				e.Prepare(p, "without")
			}
			if with, without := mounted("with"), mounted("without"); !with || without {
				t.Errorf("the setting is %v now; the claims have files: %v and %v", on, with, without)
			}
			file, err := os.ReadFile(e.MetadataFile("with", 0))
			e.Must(err)
			for _, text := range []string{`"podClaimName":"mine"`, `"NVIDIA H100"`} {
				if !strings.Contains(string(file), text) {
					t.Errorf("the file lacks %s:\n%s", text, file)
				}
			}
		}
	}
	e.CheckClean(p, "with", "without")
	e.Unprepare(p, "with")
	e.Unprepare(p, "without")
	e.CheckClean(p)
}
