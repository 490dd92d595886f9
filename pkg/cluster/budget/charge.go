// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/api/budget/v1alpha1"
)

// Amount is a number of GPUs, in thousandths, and their memory, in bytes.
type Amount struct{ MilliGPUs, Bytes int64 }

// Charge is the cost of claims.
type Charge struct {
	Amount
	// Models has the cost by model. At the creation of a claim of several models, each can cost all of it.
	Models map[string]Amount
	// Unknown says why the cost is known only in GPUs, or not at all if UnknownGPUs is set.
	Unknown     string
	UnknownGPUs bool
}

// Zero reports whether a claim costs nothing.
func (c Charge) Zero() bool {
	return c.Amount == Amount{} && c.Unknown == "" && !slices.ContainsFunc(slices.Collect(maps.Values(c.Models)),
		func(a Amount) bool { return a != Amount{} })
}

// most bounds amounts, so that sums do not overflow.
const most = 1 << 60

func (a Amount) plus(b Amount) Amount {
	return Amount{min(a.MilliGPUs+b.MilliGPUs, most), min(a.Bytes+b.Bytes, most)}
}

func (a Amount) minus(b Amount) Amount {
	return Amount{max(a.MilliGPUs-b.MilliGPUs, 0), max(a.Bytes-b.Bytes, 0)}
}

func (a Amount) times(n int64) Amount {
	multiply := func(x int64) int64 {
		if x > 0 && n > most/x {
			return most
		}
		return x * n
	}
	return Amount{multiply(a.MilliGPUs), multiply(a.Bytes)}
}

func (a Amount) larger(b Amount) Amount {
	return Amount{max(a.MilliGPUs, b.MilliGPUs), max(a.Bytes, b.Bytes)}
}

// Plus returns the cost of both.
func (c Charge) Plus(o Charge) Charge { return c.with(o, Amount.plus) }

// Minus returns the cost without that of some claims.
func (c Charge) Minus(o Charge) Charge { return c.with(o, Amount.minus) }

// Larger returns the larger cost, of GPUs and of memory, in all and by model.
func (c Charge) Larger(o Charge) Charge { return c.with(o, Amount.larger) }

func (c Charge) with(o Charge, join func(a, b Amount) Amount) Charge {
	out := Charge{Amount: join(c.Amount, o.Amount), Unknown: c.Unknown, UnknownGPUs: c.UnknownGPUs || o.UnknownGPUs}
	if out.Unknown == "" {
		out.Unknown = o.Unknown
	}
	if len(c.Models)+len(o.Models) > 0 {
		out.Models = map[string]Amount{}
		for model := range c.Models {
			out.Models[model] = join(c.Models[model], o.Models[model])
		}
		for model := range o.Models {
			out.Models[model] = join(c.Models[model], o.Models[model])
		}
	}
	return out
}

func (c Charge) times(n int64) Charge {
	c.Amount, c.Models = c.Amount.times(n), maps.Clone(c.Models)
	for model, a := range c.Models {
		c.Models[model] = a.times(n)
	}
	return c
}

// of returns the cost of one device.
func of(a Amount, model string) Charge {
	return Charge{Amount: a, Models: map[string]Amount{model: a}}
}

// read returns the numbers of a status.
func read(a v1alpha1.Amounts) Charge {
	out := Charge{Amount: amountOf(a.Amount)}
	for _, m := range a.Models {
		if out.Models == nil {
			out.Models = map[string]Amount{}
		}
		out.Models[m.ProductName] = amountOf(m.Amount)
	}
	return out
}

func amountOf(a v1alpha1.Amount) (out Amount) {
	if a.GPUs != nil {
		out.MilliGPUs = a.GPUs.MilliValue()
	}
	if a.Memory != nil {
		out.Bytes = a.Memory.Value()
	}
	return out
}

// written returns the charge for a status. It has the amounts of the models with a limit.
func (c Charge) written(hard v1alpha1.Amounts) v1alpha1.Amounts {
	out := v1alpha1.Amounts{Amount: c.Amount.written()}
	for _, m := range hard.Models {
		out.Models = append(out.Models, v1alpha1.Model{ProductName: m.ProductName,
			Amount: c.Models[m.ProductName].written()})
	}
	return out
}

// complete returns the charge with all of its models, because a budget can get more limits. Of too many models, the
// ones with the largest cost stay.
func (c Charge) complete() v1alpha1.Amounts {
	out := v1alpha1.Amounts{Amount: c.Amount.written()}
	models := slices.SortedFunc(maps.Keys(c.Models), func(a, b string) int {
		return cmp.Or(cmp.Compare(c.Models[b].Bytes, c.Models[a].Bytes), cmp.Compare(a, b))
	})
	for _, model := range models[:min(len(models), v1alpha1.MaxModels)] {
		out.Models = append(out.Models, v1alpha1.Model{ProductName: model, Amount: c.Models[model].written()})
	}
	return out
}

func (a Amount) written() v1alpha1.Amount {
	return v1alpha1.Amount{GPUs: resource.NewMilliQuantity(a.MilliGPUs, resource.DecimalSI),
		Memory: resource.NewQuantity(a.Bytes, resource.BinarySI)}
}

// limit is one limit of a budget with the numbers for people.
type limit struct {
	what              string
	hard, used, asked int64
	// memory means that the numbers are bytes; otherwise they are thousandths of a GPU.
	memory bool
}

func (l limit) unit(n int64) string {
	if l.memory {
		return bytes(n)
	}
	return milli(n)
}

func (l limit) broken() bool { return l.asked > 0 && l.used+l.asked > l.hard }

func (l limit) String() string {
	return fmt.Sprintf("%s: it asks for %s, %s of %s are used", l.what, l.unit(l.asked), l.unit(l.used), l.unit(l.hard))
}

func milli(n int64) string {
	text := strings.TrimRight(fmt.Sprintf("%d.%03d", n/1000, n%1000), "0")
	return strings.TrimSuffix(text, ".")
}

func bytes(n int64) string {
	if n > 0 && n%(1<<20) != 0 { // People read round numbers.
		n = (n>>20 + 1) << 20
	}
	return resource.NewQuantity(n, resource.BinarySI).String()
}

// limits returns the limits of a budget, with the use and the cost of a claim.
func limits(hard v1alpha1.Amounts, used, asked Charge) (out []limit) {
	add := func(model string, l v1alpha1.Amount, used, asked Amount) {
		suffix := ""
		if model != "" {
			suffix = " of " + model
		}
		if l.GPUs != nil {
			out = append(out, limit{"GPUs" + suffix, l.GPUs.MilliValue(), used.MilliGPUs, asked.MilliGPUs, false})
		}
		if l.Memory != nil {
			out = append(out, limit{"memory" + suffix, l.Memory.Value(), used.Bytes, asked.Bytes, true})
		}
	}
	add("", hard.Amount, used.Amount, asked.Amount)
	for _, m := range hard.Models {
		add(m.ProductName, m.Amount, used.Models[m.ProductName], asked.Models[m.ProductName])
	}
	return out
}

// bounds reports whether a budget limits more than the number of GPUs.
func bounds(hard v1alpha1.Amounts) bool { return hard.Memory != nil || len(hard.Models) > 0 }
