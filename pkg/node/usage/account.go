// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// Observation is the node at one moment.
type Observation struct {
	Snapshot gpu.Snapshot
	// Plans has a plan for each claim on the node.
	Plans []plan.Plan
	// Served are the GPUs that device plugins serve, by PCI address.
	Served map[string]string
	// Activity of processes on devices is by the positions of plan and device. Nil: nothing is measured.
	Activity map[[2]int]Activity
}

// Activity describes the processes of a claim on a device. The zero Activity means that nothing could be measured.
type Activity struct {
	// Utilization is the used part of the GPU or partition, 0 to 1. It is valid if Source is set.
	Utilization float64
	// Source is the kind of measurement: `nvml` or `gpm`.
	Source string
	// Occupied means that there is a process. It is valid if Watched is set.
	Occupied, Watched bool
}

// Account holds the sums of a node. Its JSON form is its file. The zero Account is empty.
type Account struct {
	BootID string `json:"bootID"`
	// At is the time since the boot up to which seconds are counted.
	At time.Duration `json:"at"`
	// GPUs are by PCI address; a new board in a slot replaces the earlier one.
	GPUs map[string]GPU `json:"gpus"`
	// Claims are by UID. A claim that has ended is removed.
	Claims map[string]Claim `json:"claims"`
	// Namespaces are those with a claim, and the last ones with a claim in the last day.
	Namespaces map[string]Namespace `json:"namespaces"`

	// last is nil until the first observation of this process.
	last *rates
}

// GPU holds the sums of one board.
type GPU struct {
	UUID  string `json:"uuid"`
	Model string `json:"model"`
	// Slices is the number of its memory slices, 0 without MIG.
	Slices int `json:"slices,omitempty"`
	// Missing means that no scan of this boot has found the board.
	Missing bool              `json:"-"`
	Seconds map[State]float64 `json:"seconds"`
}

// Claim holds the sums of one claim on this node.
type Claim struct {
	plan.Claim
	// GPUs are by PCI address.
	GPUs map[string]Use `json:"gpus"`
}

// Namespace holds the sums of a namespace's claims on this node, with those that have ended.
type Namespace struct {
	// Seconds are seconds of whole GPUs, by model.
	Seconds map[string]float64 `json:"seconds"`
	// Last is the time since the boot at which the namespace last had a claim.
	Last time.Duration `json:"last"`
}

// keepNamespace and keepNamespaces limit the sums of namespaces that exist for a short time each. A tenant can create
// thousands a day, and each is a series of a metric.
const (
	keepNamespace  = 24 * time.Hour
	keepNamespaces = 200
)

// Use holds a claim's sums on one board, in seconds of whole GPUs.
type Use struct {
	UUID      string  `json:"uuid"`
	Model     string  `json:"model"`
	Allocated float64 `json:"allocated"`
	// Active is the integral of the utilization. It is valid if Source is set: it could be measured the last time.
	Active float64 `json:"active,omitempty"`
	Source string  `json:"source,omitempty"`
	// Occupied counts seconds, not of whole GPUs, in which the claim had a process. It is valid if Watched is set.
	Occupied float64 `json:"occupied,omitempty"`
	Watched  bool    `json:"watched,omitempty"`
}

// rates are the parts of GPUs that claims and states have at a moment.
type rates struct {
	states map[string]map[State]float64
	claims map[string]map[string]float64
}

// Advance counts the time since the last call with what was held then, and stores what is held now. After a start it
// counts the time since the previous process's last call with what is held now.
func (a *Account) Advance(bootID string, at time.Duration, o Observation) {
	if bootID != a.BootID {
		a.restart()
	}
	a.see(o.Snapshot)
	now := a.rates(o)
	charged := now
	if a.last != nil {
		charged = a.last
	}
	elapsed := 0.
	if bootID == a.BootID {
		elapsed = max(0, (at - a.At).Seconds())
	}
	a.charge(elapsed, charged, o.Plans)
	a.measure(elapsed, charged, o)
	for uid := range a.Claims {
		if now.claims[uid] == nil {
			delete(a.Claims, uid)
		}
	}
	for _, p := range o.Plans {
		n := a.Namespaces[p.Claim.Namespace]
		n.Last = at
		a.Namespaces[p.Claim.Namespace] = n
	}
	a.forget(at)
	a.BootID, a.At, a.last = bootID, max(at, 0), now
}

// forget removes namespaces that have had no claim for long, and the longest ones above the limit.
func (a *Account) forget(at time.Duration) {
	past := slices.SortedFunc(maps.Keys(a.Namespaces), func(x, y string) int {
		return cmp.Or(cmp.Compare(a.Namespaces[y].Last, a.Namespaces[x].Last), strings.Compare(x, y))
	})
	past = slices.DeleteFunc(past, func(name string) bool { return a.Namespaces[name].Last >= at })
	for i, name := range past {
		if i >= keepNamespaces || at-a.Namespaces[name].Last >= keepNamespace {
			delete(a.Namespaces, name)
		}
	}
}

// restart marks each board as missing until a scan finds it. The times of the last boot do not count.
func (a *Account) restart() {
	a.last = nil
	for address, g := range a.GPUs {
		g.Missing = true
		a.GPUs[address] = g
	}
	for name, n := range a.Namespaces {
		n.Last = 0
		a.Namespaces[name] = n
	}
}

// see stores the boards of a scan.
func (a *Account) see(s gpu.Snapshot) {
	if a.GPUs == nil {
		a.GPUs, a.Claims, a.Namespaces = map[string]GPU{}, map[string]Claim{}, map[string]Namespace{}
	}
	for _, g := range s.GPUs {
		known := a.GPUs[g.PCIAddress]
		if known.UUID != g.UUID || known.Seconds == nil {
			known = GPU{UUID: g.UUID, Seconds: map[State]float64{}}
		}
		known.Model, known.Missing = g.ProductName, false
		known.Slices = max(known.Slices, memorySlices(g))
		a.GPUs[g.PCIAddress] = known
	}
}

func (a *Account) rates(o Observation) *rates {
	r := &rates{states: map[string]map[State]float64{}, claims: map[string]map[string]float64{}}
	held := map[string][]plan.Device{}
	for _, p := range o.Plans {
		own, byGPU := map[string][]plan.Device{}, map[string]float64{}
		for _, d := range p.Devices {
			own[d.PCIAddress] = append(own[d.PCIAddress], d)
		}
		for address, devices := range own {
			held[address] = append(held[address], devices...)
			if weight := together(devices, a.GPUs[address].Slices); weight > 0 {
				byGPU[address] = weight
			}
		}
		r.claims[p.Claim.UID] = byGPU
	}
	for address, g := range a.GPUs {
		if g.Missing {
			continue
		}
		_, served := o.Served[address]
		b := board{slices: g.Slices, held: held[address], served: served}
		b.gpu, b.present = o.Snapshot.ByAddress(address)
		r.states[address] = b.states()
	}
	return r
}

// charge adds the seconds of states and claims. It adds claims that are new, with no seconds.
func (a *Account) charge(elapsed float64, r *rates, plans []plan.Plan) {
	for address, states := range r.states {
		g, ok := a.GPUs[address]
		if !ok || g.Missing {
			continue
		}
		for state, part := range states {
			g.Seconds[state] += elapsed * part
		}
	}
	for _, p := range plans {
		c := a.Claims[p.Claim.UID]
		if c.GPUs == nil {
			c = Claim{GPUs: map[string]Use{}}
		}
		c.Claim = p.Claim
		if a.Namespaces[c.Namespace].Seconds == nil {
			a.Namespaces[c.Namespace] = Namespace{Seconds: map[string]float64{}}
		}
		for _, d := range p.Devices {
			if use := c.GPUs[d.PCIAddress]; use.UUID != d.UUID && !d.Admin {
				c.GPUs[d.PCIAddress] = Use{UUID: d.UUID, Model: a.GPUs[d.PCIAddress].Model}
			}
		}
		a.Claims[p.Claim.UID] = c
	}
	for uid, byGPU := range r.claims {
		for address, weight := range byGPU {
			if use, ok := a.Claims[uid].GPUs[address]; ok {
				use.Allocated += elapsed * weight
				a.Claims[uid].GPUs[address] = use
				a.Namespaces[a.Claims[uid].Namespace].Seconds[use.Model] += elapsed * weight
			}
		}
	}
}

// measure adds the active and occupied seconds of devices whose use can be measured, of the claims that are charged for
// the time. The activity of a claim is at most what it is charged.
func (a *Account) measure(elapsed float64, charged *rates, o Observation) {
	if o.Activity == nil {
		return
	}
	for n, p := range o.Plans {
		uses, active, occupied := a.Claims[p.Claim.UID].GPUs, map[string]float64{}, map[string]bool{}
		for address, use := range uses {
			// A series that stopped rising would mean that the claim is idle.
			use.Source, use.Watched = "", false
			uses[address] = use
		}
		for i, d := range p.Devices {
			now := o.Activity[[2]int{n, i}]
			use, known := uses[d.PCIAddress]
			if !known || d.Admin {
				continue
			}
			if weight := weightOf(d, a.GPUs[d.PCIAddress].Slices); now.Source != "" && weight > 0 {
				active[d.PCIAddress] += weight * min(1, max(0, now.Utilization)/sharePart(d.Share))
				use.Source = now.Source
			}
			use.Watched = use.Watched || now.Watched
			occupied[d.PCIAddress] = occupied[d.PCIAddress] || now.Watched && now.Occupied
			uses[d.PCIAddress] = use
		}
		held, before := charged.claims[p.Claim.UID]
		for address, use := range uses {
			use.Active += elapsed * min(active[address], held[address])
			if before && occupied[address] {
				use.Occupied += elapsed
			}
			uses[address] = use
		}
	}
}

// Clone returns a copy for readers.
func (a *Account) Clone() Account {
	out := Account{BootID: a.BootID, At: a.At, GPUs: map[string]GPU{}, Claims: map[string]Claim{}, Namespaces: map[string]Namespace{}}
	for address, g := range a.GPUs {
		g.Seconds = maps.Clone(g.Seconds)
		out.GPUs[address] = g
	}
	for uid, c := range a.Claims {
		c.GPUs = maps.Clone(c.GPUs)
		out.Claims[uid] = c
	}
	for name, n := range a.Namespaces {
		n.Seconds = maps.Clone(n.Seconds)
		out.Namespaces[name] = n
	}
	return out
}
