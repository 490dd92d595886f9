// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/formtest"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/sim/engine"
)

// newestForm is the directory of goldens that -update writes. Those of form 1 are by the commit of test/skew, the oldest whose
// records must be readable, and have only a digest of the allocation. Goldens that are on the main branch do not change:
// the next change of a form raises the number.
const newestForm = "3"

// The parameters of the goldens' claims.
const (
	gpuConfig = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig",`
	allOfMPS  = gpuConfig + `"sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":30,"defaultPinnedDeviceMemoryLimit":"5Gi","multiUser":true}}}`
	longTime  = gpuConfig + `"sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`
	topology  = gpuConfig + `"topology":{"cudaVisibleDevices":true,"ncclTopology":true}}`
	migMPS    = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS"}}`
)

// forms are machines whose files have every form that a plugin can leave behind.
var forms = []struct {
	name, comment string
	given         func(e *env, p *process)
	// when is interrupted by a crash after each of its operations, until crashed is true; nil if nothing is interrupted.
	when    func(e *env, p *process) error
	crashed func(e *env, r record.Record, err error) bool
}{
	{name: "partition-share-group", comment: "Two partitions in a claim, a shared partition, a share by MPS, a group with NCCL's file, a monitor device.", given: func(e *env, p *process) {
		e.Claim("a", "0 1g.10gb 0", "0 1g.10gb 1")
		e.SharedClaim("b", 3, migMPS, "0 1g.10gb 4")
		c := e.SharedClaim("c", 10, allOfMPS, "1").Status.Allocation.Devices
		c.Results[0].ConsumedCapacity["compute"], c.Config[0].Requests = resource.MustParse("40"), []string{"r0"}
		e.SharedClaim("d", 0, topology, "group 2 2")
		e.Claim("e", "monitor 1").Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: "watched"}
		preparesAll(e, p)
	}},
	{name: "whole-slice-steps", comment: "A whole GPU, one with long time slices, two shares by time slices whose containers have limits, a claim whose step has data.", given: func(e *env, p *process) {
		e.Sim.Change(func(s *engine.State) { s.Profile.Driver.CUDA = engine.MemoryLimits })
		e.Claim("a", "0")
		e.SharedClaim("b", 0, longTime, "1")
		e.SharedClaim("c", 3, longTime, "2")
		e.SharedClaim("d", 4, longTime, "2")
		e.SteppedClaim("e", "3")
		preparesAll(e, p)
	}},
	{name: "external-partition", comment: "A claim has an administrator's partition, and another is free.", given: func(e *env, p *process) {
		e.Sim.Administrator(0, 19, 4, false)
		e.Sim.Administrator(0, 19, 5, false)
		e.Sim.Change(func(s *engine.State) { s.GPUs[0].Instances[0].Computes[0].ID = 1 })
		e.Claim("a", "0 1g.10gb 4")
		preparesAll(e, p)
	}},
	{
		name: "intent", comment: "The plugin crashed after the intent of a partition.",
		given: func(e *env, _ *process) { e.Claim("a", "0 1g.10gb 4") }, when: prepares("a"),
		crashed: func(_ *env, r record.Record, err error) bool { return err == nil && r.State == record.Intent },
	},
	{
		name: "renewed-intent", comment: "The plugin crashed while it made a partition again after a reboot.",
		given: func(e *env, p *process) { e.Claim("a", "0 1g.10gb 4"); preparesAll(e, p); e.Reboot(false) }, when: prepares("a"),
		crashed: func(e *env, r record.Record, err error) bool {
			return err == nil && r.Renews != "" && len(e.Sim.State().GPUs[0].Instances) > 0
		},
	},
	{
		name: "committed-before-reboot", comment: "The machine was rebooted under a partition.",
		given: func(e *env, p *process) { e.Claim("a", "0 1g.10gb 4"); preparesAll(e, p); e.Reboot(true) },
	},
	{
		name: "lost-partition", comment: "An administrator destroyed a partition, and the plugin crashed while it made it again.",
		given: func(e *env, p *process) {
			e.Claim("a", "0 1g.10gb 4")
			preparesAll(e, p)
			e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
		}, when: prepares("a"),
		crashed: func(_ *env, r record.Record, err error) bool { return err == nil && r.Plan.Devices[0].Partition.Lost },
	},
	{
		name: "release", comment: "The plugin crashed in the release of a partition.",
		given: func(e *env, p *process) { e.Claim("a", "0 1g.10gb 4"); preparesAll(e, p) }, when: unprepares("a"),
		crashed: func(e *env, _ record.Record, _ error) bool {
			_, err := os.Stat(strings.TrimSuffix(e.RecordFile("a"), ".json") + ".undo")
			return err == nil
		},
	},
	{name: "unknown", comment: "The record of a claim is damaged, and its CDI spec is lost.", given: func(e *env, p *process) {
		e.Claim("a", "0")
		e.Claim("b", "1")
		preparesAll(e, p)
		e.Damage("a")
		e.Must(os.Remove(e.SpecFile("a")))
		_ = p.RecoverAll() // It reports the damage.
	}},
}

func preparesAll(e *env, p *process) {
	for _, uid := range uids(e) {
		e.Prepare(p, uid)
	}
}

func uids(e *env) (out []string) {
	for uid := range e.Claims {
		out = append(out, uid)
	}
	slices.Sort(out)
	return out
}

// TestForms_Newest_AreWritten writes the goldens with -update, and fails without a golden of each form.
func TestForms_Newest_AreWritten(t *testing.T) {
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			file := filepath.Join("testdata", "forms", newestForm, f.name+".txtar")
			if !*formtest.Update {
				if _, err := os.Stat(file); err != nil {
					t.Error(err)
				}
				return
			}
			for n := 0; ; n++ {
				e := devicestatetest.NewSimulated(t, "hgx-h100")
				p := e.Start()
				f.given(e, p)
				p.Crash()
				if f.when == nil {
					e.Save(file, f.comment)
					return
				}
				faults := hosttest.At(n, hosttest.CrashAfter)
				p, err := e.StartWith(faults.Do)
				e.Must(err)
				faults.Arm()
				crashed, err := hosttest.Run(func() error { return f.when(e, p) })
				p.Crash()
				if !crashed {
					t.Fatalf("no crash leaves this form; the last attempt ended with %v", err)
				}
				if r, err := recordOf(e, "a"); f.crashed(e, r, err) {
					e.Save(file, f.comment)
					return
				}
			}
		})
	}
}

func recordOf(e *env, uid string) (record.Record, error) {
	data, err := os.ReadFile(e.RecordFile(uid))
	if err != nil {
		return record.Record{}, err
	}
	return record.Decode(data, uid)
}

// goldens returns the goldens of all forms.
func goldens(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "forms", "*", "*.txtar"))
	if err != nil || len(files) < len(forms) {
		t.Fatalf("%d goldens: %v", len(files), err)
	}
	return files
}

func name(file string) string {
	return strings.TrimPrefix(strings.TrimSuffix(file, ".txtar"), "testdata/forms/")
}

// TestForms_EveryKey_HasGoldenAndIsRead compares the types of records with all goldens.
func TestForms_EveryKey_HasGoldenAndIsRead(t *testing.T) {
	var records, plans [][]byte
	for _, file := range goldens(t) {
		e := devicestatetest.Load(t, file)
		e.Must(filepath.WalkDir(filepath.Join(e.StateDir, "records"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Base(filepath.Dir(path)) == "quarantine" {
				return err
			}
			data, err := os.ReadFile(path)
			_, payload, _ := bytes.Cut(data, []byte("\n"))
			records = append(records, payload)
			var r struct{ Plan json.RawMessage }
			e.Must(json.Unmarshal(payload, &r))
			plans = append(plans, r.Plan)
			return err
		}))
		for _, uid := range uids(e) {
			data, err := os.ReadFile(e.SpecFile(uid))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			e.Must(err)
			var spec specs.Spec
			e.Must(json.Unmarshal(data, &spec))
			plans = append(plans, []byte(spec.Annotations[cdi.Vendor(devicestatetest.Driver)+"/prepared-claim"]))
		}
	}
	formtest.Check[record.Record](t, records...)
	formtest.Check[plan.Plan](t, plans...)
}

// world is everything that a repeated Prepare must leave as it is.
type world struct {
	GPUs  []engine.GPU
	Files map[string]string
}

func worldOf(e *env) world {
	w := world{GPUs: e.Sim.State().GPUs, Files: map[string]string{}}
	for _, dir := range []string{filepath.Join(e.StateDir, "records"), filepath.Join(e.StateDir, "gpus"), e.Mounted(), e.CDI} {
		e.Must(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			w.Files[path] = string(data)
			return err
		}))
	}
	return w
}

// committed lists the claims that were prepared when their golden was saved.
func committed(e *env) (out []string) {
	for _, uid := range uids(e) {
		boot, err := os.ReadFile(e.BootFile)
		e.Must(err)
		r, err := recordOf(e, uid)
		if err == nil && r.State == record.Committed && r.BootID == strings.TrimSpace(string(boot)) && !r.Plan.Devices[0].Partition.Lost {
			out = append(out, uid)
		}
	}
	return out
}

// TestForms_ClaimsOfEarlierReleases_PreparedAgainUnchanged restarts the plugin over the files of each form, and prepares all
// claims again, as the kubelet does. Prepared ones must keep all that their containers use.
func TestForms_ClaimsOfEarlierReleases_PreparedAgainUnchanged(t *testing.T) {
	for _, file := range goldens(t) {
		t.Run(name(file), func(t *testing.T) {
			e := devicestatetest.Load(t, file)
			p := e.Start()
			before, unchanged := worldOf(e), committed(e)
			_ = p.RecoverAll() // It reports damaged records and lost partitions.
			for _, uid := range unchanged {
				e.Prepare(p, uid)
			}
			if len(unchanged) == len(e.Claims) {
				if d := cmp.Diff(before, worldOf(e)); d != "" {
					t.Errorf("prepared again, the machine changed (-before +after):\n%s", d)
				}
			}
			preparesAll(e, p)
			e.CheckClean(p, uids(e)...)
			e.Claim("other", "0")
			e.CheckRefused(p, "other", claimerror.Transient, claimerror.DeviceInUse, "UID ")
			delete(e.Claims, "other")
			for _, uid := range uids(e) {
				e.Unprepare(p, uid)
			}
			e.CheckClean(p)
			e.CheckRestored(p)
		})
	}
}

// TestForms_ClaimsOfEarlierReleases_Unprepared ends the pods of each form while the plugin is replaced.
func TestForms_ClaimsOfEarlierReleases_Unprepared(t *testing.T) {
	for _, file := range goldens(t) {
		t.Run(name(file), func(t *testing.T) {
			e := devicestatetest.Load(t, file)
			p := e.Start()
			for _, uid := range uids(e) {
				e.Unprepare(p, uid)
			}
			e.CheckClean(p)
			e.CheckRestored(p)
		})
	}
}

// TestForms_RecordsGone_SpecsReplaceThem reads the plans of earlier releases from the annotations of CDI specs.
func TestForms_RecordsGone_SpecsReplaceThem(t *testing.T) {
	read := 0
	for _, file := range goldens(t) {
		e := devicestatetest.Load(t, file)
		if len(committed(e)) != len(e.Claims) {
			continue // Its claims need more than their specs.
		}
		read++
		t.Run(name(file), func(t *testing.T) {
			e.T = t
			devices := func() (out [][]plan.Device) {
				for _, uid := range uids(e) {
					r, err := recordOf(e, uid)
					e.Must(err)
					out = append(out, r.Plan.Devices)
				}
				return out
			}
			before, gpus := devices(), e.Sim.State().GPUs
			for _, uid := range uids(e) {
				e.Must(os.Remove(e.RecordFile(uid)))
			}
			p := e.Start()
			e.Recover(p)
			preparesAll(e, p)
			if d := cmp.Diff(before, devices()) + cmp.Diff(gpus, e.Sim.State().GPUs); d != "" {
				t.Errorf("prepared again, the machine changed (-before +after):\n%s", d)
			}
		})
	}
	if read < 3 {
		t.Errorf("only %d forms have specs", read)
	}
}

// TestPrepare_ClaimEncodedOtherwise_KeepsDevices prepares claims again, as another client of the API server reads them: with
// spaces in parameters.
func TestPrepare_ClaimEncodedOtherwise_KeepsDevices(t *testing.T) {
	e := devicestatetest.Load(t, filepath.Join("testdata", "forms", newestForm, "partition-share-group.txtar"))
	before := worldOf(e)
	data, err := json.MarshalIndent(e.Claims, "", "  ")
	e.Must(err)
	clear(e.Claims)
	e.Must(json.Unmarshal(data, &e.Claims))
	preparesAll(e, e.Start())
	if d := cmp.Diff(before, worldOf(e)); d != "" {
		t.Errorf("prepared again, the machine changed (-before +after):\n%s", d)
	}
}
