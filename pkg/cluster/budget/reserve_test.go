// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/internal/seedtest"
)

var now = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

func quantity(text string) *resource.Quantity {
	if text == "" {
		return nil
	}
	return new(resource.MustParse(text))
}

// newBudget is a counted budget of an empty namespace.
func newBudget(gpus, memory string, models ...v1alpha1.Model) *v1alpha1.GPUBudget {
	b := &v1alpha1.GPUBudget{}
	b.Namespace, b.Name, b.Generation = "team-a", v1alpha1.Name, 1
	b.Spec.Hard = v1alpha1.Amounts{Amount: v1alpha1.Amount{GPUs: quantity(gpus), Memory: quantity(memory)}, Models: models}
	Count(b, Counted{Version: "1"}, now)
	return b
}

func model(name, gpus, memory string) v1alpha1.Model {
	return v1alpha1.Model{ProductName: name, Amount: v1alpha1.Amount{GPUs: quantity(gpus), Memory: quantity(memory)}}
}

func gpus(milli int64, models ...string) Charge {
	c := Charge{Amount: Amount{milli, milli * (80 << 30) / 1000}, Models: map[string]Amount{}}
	for _, m := range models {
		c.Models[m] = c.Amount
	}
	return c
}

func claim(name string, c Charge) Claim {
	return Claim{Name: name, UID: types.UID("uid-" + name), Charge: c}
}

func TestReserve_Limits_RefusedAboveWithUseAndLimit(t *testing.T) {
	for name, w := range map[string]struct {
		budget *v1alpha1.GPUBudget
		asked  []Charge // The last one is refused if want is set.
		want   string
	}{
		"no limit":           {newBudget("", ""), []Charge{gpus(9000)}, ""},
		"exactly the limit":  {newBudget("2", ""), []Charge{gpus(1000), gpus(1000)}, ""},
		"one more":           {newBudget("2", ""), []Charge{gpus(1000), gpus(1000), gpus(125)}, "GPU budget team-a/default is exhausted: GPUs: it asks for 0.125, 2 of 2 are used. Delete claims"},
		"half a GPU":         {newBudget("500m", ""), []Charge{gpus(500), gpus(1)}, "GPUs: it asks for 0.001, 0.5 of 0.5 are used"},
		"nothing allowed":    {newBudget("0", ""), []Charge{gpus(1)}, "0 of 0 are used"},
		"memory":             {newBudget("", "100Gi"), []Charge{gpus(1000), gpus(1000)}, "memory: it asks for 80Gi, 80Gi of 100Gi are used"},
		"a model":            {newBudget("9", "", model("H100", "1", "")), []Charge{gpus(1000, "H100"), gpus(1000, "H100")}, "GPUs of H100: it asks for 1, 1 of 1 are used"},
		"another model":      {newBudget("9", "", model("H100", "1", "")), []Charge{gpus(1000, "H100"), gpus(1000, "L40S")}, ""},
		"either model":       {newBudget("9", "", model("H100", "1", "")), []Charge{gpus(1000, "H100"), gpus(1000, "L40S", "H100")}, "GPUs of H100"},
		"a model's memory":   {newBudget("", "", model("H100", "", "80Gi")), []Charge{gpus(1000, "H100"), gpus(1, "H100")}, "memory of H100: it asks for 82Mi, 80Gi of 80Gi are used"},
		"both limits":        {newBudget("1", "80Gi"), []Charge{gpus(1000), gpus(1000)}, "GPUs: it asks for 1, 1 of 1 are used; memory: it asks for 80Gi"},
		"unknown, only GPUs": {newBudget("1", ""), []Charge{{Amount: Amount{MilliGPUs: 1000}, Unknown: "no device"}}, ""},
		"unknown memory":     {newBudget("1", "1Gi"), []Charge{{Amount: Amount{MilliGPUs: 1000}, Unknown: "no device"}}, "it cannot be counted: no device"},
		"unknown model":      {newBudget("1", "", model("H100", "1", "")), []Charge{{Amount: Amount{MilliGPUs: 1000}, Unknown: "no device"}}, "it cannot be counted"},
		"unknown size":       {newBudget("1", ""), []Charge{{Unknown: "no device", UnknownGPUs: true}}, "it cannot be counted"},
		"overflow":           {newBudget("1000000", "1Pi"), []Charge{gpus(1000).times(1 << 62)}, "is exhausted"},
	} {
		for i, asked := range w.asked {
			last := i == len(w.asked)-1
			err := Reserve(w.budget, claim(fmt.Sprint(i), asked), now)
			switch {
			case !last || w.want == "":
				if err != nil {
					t.Errorf("%s: claim %d: %v", name, i, err)
				}
			case err == nil || !strings.Contains(err.Error(), w.want):
				t.Errorf("%s: %v, want %q", name, err, w.want)
			}
		}
	}
}

func TestReserve_NotCounted_RefusedForAMoment(t *testing.T) {
	b := newBudget("1", "")
	b.Generation++
	if err := Reserve(b, claim("a", gpus(1000)), now); err == nil || !strings.Contains(err.Error(), "try again in a moment") {
		t.Errorf("a changed budget: %v", err)
	}
	b = newBudget("1", "")
	b.Status = v1alpha1.Status{}
	if err := Reserve(b, claim("a", gpus(1000)), now); err == nil || !strings.Contains(err.Error(), "try again in a moment") {
		t.Errorf("a new budget: %v", err)
	}
}

// TestReserve_SameName_CostsOnce repeats a creation that another webhook has refused.
func TestReserve_SameName_CostsOnce(t *testing.T) {
	b := newBudget("2", "")
	for i, c := range []Charge{gpus(1000), gpus(2000), gpus(1000)} {
		if err := Reserve(b, Claim{Name: "a", UID: types.UID(fmt.Sprint(i)), Charge: c}, now); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(b.Status.Used).MilliGPUs; got != 2000 {
		t.Errorf("%d/1000 used, want the largest of three attempts", got)
	}
}

// TestReserve_QuotaRefusesPodsClaim_CostsOnce has a ResourceQuota beside the budget: it refuses each claim for a pod after the webhook,
// and Kubernetes tries again under another name, until the quota has room.
func TestReserve_QuotaRefusesPodsClaim_CostsOnce(t *testing.T) {
	b := newBudget("8", "")
	attempt := func(i int) Claim {
		return Claim{Name: fmt.Sprint("pod-gpu-", i), UID: types.UID(fmt.Sprint(i)), Charge: gpus(1000), For: "pod/gpu"}
	}
	use := func(step string, want int64, reservations int) {
		t.Helper()
		if got := read(b.Status.Used).MilliGPUs; got != want || len(b.Status.Reservations) != reservations {
			t.Errorf("%s: %d/1000 used, %d reservations; want %d, %d", step, got, len(b.Status.Reservations), want, reservations)
		}
	}
	for i := range 14 {
		if err := Reserve(b, attempt(i), now); err != nil {
			t.Fatal(err)
		}
	}
	use("14 attempts", 1000, 14)
	if err := Reserve(b, claim("a user's", gpus(7000)), now); err != nil {
		t.Error(err)
	}
	use("a claim beside them", 8000, 15)
	made := attempt(12) // The last one is of a claim that comes after this one was deleted.
	Count(b, Counted{Claims: map[types.UID]Claim{made.UID: made}, Version: "2"}, now)
	use("the claim is there", 9000, 2)
}

func TestReserve_TooManyReservations_Refused(t *testing.T) {
	b := newBudget("1000", "")
	for i := range v1alpha1.MaxReservations {
		if err := Reserve(b, claim(fmt.Sprint(i), gpus(1)), now); err != nil {
			t.Fatal(err)
		}
	}
	if err := Reserve(b, claim("more", gpus(1)), now); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Errorf("%v", err)
	}
	text, err := json.Marshal(b)
	if err != nil || len(text) > 300<<10 {
		t.Errorf("the budget has %d bytes (%v), and an API server stores 1.5 MiB", len(text), err)
	}
}

func TestCount_Reservations_StayUntilTheClaimIsCountedOrGone(t *testing.T) {
	b := newBudget("9", "")
	for _, name := range []string{"counted", "creating", "gone", "young"} {
		if err := Reserve(b, claim(name, gpus(1000)), now); err != nil {
			t.Fatal(err)
		}
	}
	later := now.Add(Expiry)
	ages := Ages{}.Next(b, now)
	ages[sightingOf(b.Status.Reservations[3])] = later.Add(-time.Second)
	Count(b, Counted{
		Claims:  map[types.UID]Claim{"uid-counted": claim("counted", gpus(500)), "uid-other": claim("other", gpus(250))},
		Version: "7", Gone: map[types.UID]bool{"uid-gone": true, "uid-young": true}, Ages: ages,
	}, later)
	var kept []string
	for _, r := range b.Status.Reservations {
		kept = append(kept, r.Claim)
	}
	if fmt.Sprint(kept) != "[creating young]" || read(b.Status.Used).MilliGPUs != 2750 || b.Status.CountedVersion != "7" {
		t.Errorf("reservations %v, %d/1000 used, version %s", kept, read(b.Status.Used).MilliGPUs, b.Status.CountedVersion)
	}
}

// TestCount_ClaimOfThatNameExists_CostsTheLarger creates a claim again that exists: the creation is reserved, and fails.
func TestCount_ClaimOfThatNameExists_CostsTheLarger(t *testing.T) {
	b := newBudget("9", "")
	if err := Reserve(b, Claim{Name: "a", UID: "second", Charge: gpus(2000)}, now); err != nil {
		t.Fatal(err)
	}
	Count(b, Counted{Claims: map[types.UID]Claim{"first": {Name: "a", UID: "first", Charge: gpus(1000)}}, Version: "2"}, now)
	if got := read(b.Status.Used).MilliGPUs; got != 2000 {
		t.Errorf("%d/1000 used", got)
	}
}

func TestCount_UseAboveLimit_ConditionSaysSo(t *testing.T) {
	b := newBudget("1", "", model("H100", "1", ""))
	if !meta.IsStatusConditionFalse(b.Status.Conditions, v1alpha1.Exceeded) {
		t.Errorf("%+v", b.Status.Conditions)
	}
	Count(b, Counted{Claims: map[types.UID]Claim{"u": claim("a", gpus(2000, "H100"))}, Version: "2"}, now)
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.Exceeded)
	if c.Status != "True" || !strings.HasPrefix(c.Message, "GPUs: 2 of 1 are used; GPUs of H100: 2 of 1 are used.") {
		t.Errorf("%+v", c)
	}
}

// TestBudget_RandomOrder_ExistingClaimsCostAtMostTheUse creates and deletes claims while caches are late and creations fail, with
// leaders that change and instances whose clocks differ. The store keeps only writes on top of the version that was read.
func TestBudget_RandomOrder_ExistingClaimsCostAtMostTheUse(t *testing.T) {
	for seed := range seedtest.Each(t, 300) {
		r := rand.New(rand.NewPCG(seed, 1))
		stored, version, clock := newBudget("4", ""), 1, now
		exists := map[types.UID]Claim{}
		type snapshot struct {
			claims  map[types.UID]Claim
			version int
		}
		copyNow := func() snapshot {
			s := snapshot{map[types.UID]Claim{}, version}
			for uid, c := range exists {
				s.claims[uid] = c
			}
			return s
		}
		history := []snapshot{copyNow()}
		type creation struct {
			Claim
			until time.Time
		}
		var creating []creation
		var ages Ages
		for step := range 400 {
			clock = clock.Add(time.Duration(r.IntN(5)) * time.Second)
			switch r.IntN(5) {
			case 0, 1:
				c := Claim{Name: strconv.Itoa(r.IntN(8)), UID: types.UID(fmt.Sprint("u", step)), Charge: gpus(int64(250 * (1 + r.IntN(6))))}
				if entry := r.IntN(6); entry < 2 { // Kubernetes makes one claim after the other for a pod, each with a new name.
					c.Name, c.For = fmt.Sprint("made-", step), strconv.Itoa(entry)
					same := func(o Claim) bool { return o.For == c.For }
					if slices.ContainsFunc(creating, func(o creation) bool { return same(o.Claim) }) ||
						slices.ContainsFunc(slices.Collect(maps.Values(exists)), same) {
						continue
					}
				}
				skew := time.Duration(r.IntN(3)-1) * 10 * time.Minute
				if Reserve(stored, c, clock.Add(skew)) == nil {
					creating = append(creating, creation{c, clock.Add(time.Minute)})
				}
			case 2: // The API server stores a claim, or another webhook refuses it.
				if len(creating) == 0 {
					continue
				}
				i := r.IntN(len(creating))
				c := creating[i]
				creating = append(creating[:i], creating[i+1:]...)
				taken := false
				for _, other := range exists {
					taken = taken || other.Name == c.Name
				}
				if !taken && !clock.After(c.until) && r.IntN(4) > 0 {
					version++
					exists[c.UID] = c.Claim
				}
			case 3:
				if uids := slices.Sorted(maps.Keys(exists)); len(uids) > 0 {
					version++
					delete(exists, uids[r.IntN(len(uids))])
				}
			case 4: // The leader counts by a cache that is late, but not older than an earlier count.
				s := history[max(0, len(history)-1-r.IntN(6))]
				if counted, _ := strconv.Atoi(stored.Status.CountedVersion); s.version < counted {
					continue
				}
				if r.IntN(20) == 0 { // Another leader.
					ages = nil
				}
				ages = ages.Next(stored, clock)
				gone := map[types.UID]bool{}
				for _, old := range ages.Old(stored, clock) {
					_, is := exists[old.UID]
					gone[old.UID] = !is
				}
				Count(stored, Counted{Claims: s.claims, Version: strconv.Itoa(s.version), Gone: gone, Ages: ages}, clock)
			}
			history = append(history, copyNow())
			var cost int64
			for _, c := range exists {
				cost += c.Charge.MilliGPUs
			}
			if used := read(stored.Status.Used).MilliGPUs; cost > used || cost > 4000 {
				t.Fatalf("seed %d, step %d: claims cost %d/1000 GPUs; %d of 4000 are counted", seed, step, cost, used)
			}
		}
	}
}
