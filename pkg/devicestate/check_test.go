// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"os"
	"strings"
	"testing"

	"gpu-dra-driver/internal/testing/devicestatetest"
)

func TestCheck_BrokenState_ReportsProblem(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(e *env, p *process)
		says  string
	}{
		"no spec": {func(e *env, _ *process) { e.Must(os.Remove(e.SpecFile("a"))) }, "has no CDI spec"},
		"another spec": {func(e *env, _ *process) {
			e.Must(os.WriteFile(e.SpecFile("a"), []byte("{}"), 0o600))
		}, "lacks device gpu-0000-10-00-0"},
		"no metadata": {func(e *env, _ *process) { e.Must(os.Remove(e.MetadataFile("a", 0))) }, "metadata of request r0"},
		"other metadata": {func(e *env, _ *process) {
			e.Must(os.WriteFile(e.MetadataFile("a", 0), []byte("{}"), 0o600))
		}, "is not what its record says"},
		"orphan spec": {func(e *env, _ *process) { e.Must(os.Remove(e.RecordFile("a"))) }, "has a CDI spec and no record"},
		"unreadable":  {func(e *env, _ *process) { e.Damage("a") }, "is unreadable"},
		"unfinished": {func(e *env, _ *process) {
			e.Must(os.WriteFile(e.StateDir+"/records/claims/.q.json.tmp", nil, 0o600))
		}, "unfinished"},
		"two owners":      {twoOwners, "is held by claim default/claim-a and claim default/claim-b"},
		"boot ID missing": {func(e *env, _ *process) { e.Must(os.Remove(e.BootFile)) }, "boot ID"},
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.New(t)
			p := e.Start()
			e.Claim("a", "0")
			e.Prepare(p, "a")
			e.Must(p.Check())
			test.spoil(e, p)
			if err := p.Check(); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %q", err, test.says)
			}
		})
	}
}

func twoOwners(e *env, p *process) {
	saved, err := os.ReadFile(e.RecordFile("a"))
	e.Must(err)
	e.Must(os.Remove(e.RecordFile("a")))
	e.Claim("b", "0")
	e.Prepare(p, "b")
	e.Must(os.WriteFile(e.RecordFile("a"), saved, 0o600))
}
