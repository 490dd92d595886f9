// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"math"
	"strconv"
	"strings"
)

// scale is a multiple of a unit.
type scale struct {
	size   float64
	suffix string
}

const kib = 1024

// currency is a unit whose symbol stands before the value.
const currency = "currencyUSD"

// units are Grafana's units that the dashboards use, with their multiples in ascending order.
var units = map[string][]scale{
	"none":        {{1, ""}},
	"short":       {{1, ""}, {1e3, " K"}, {1e6, " Mil"}},
	"percentunit": {{.01, "%"}},
	"watt":        {{1, " W"}, {1e3, " kW"}},
	"celsius":     {{1, " °C"}},
	"bytes":       {{1, " B"}, {kib, " KiB"}, {kib * kib, " MiB"}, {kib * kib * kib, " GiB"}, {kib * kib * kib * kib, " TiB"}},
	"binBps":      {{1, " B/s"}, {kib, " KiB/s"}, {kib * kib, " MiB/s"}, {kib * kib * kib, " GiB/s"}},
	currency:      {{1, ""}, {1e3, "K"}, {1e6, "M"}},
	"s":           {{1e-6, " µs"}, {1e-3, " ms"}, {1, " s"}, {60, " min"}, {3600, " h"}},
}

// scaleOf returns the largest multiple of a unit that is at most a value.
func scaleOf(unit string, value float64) scale {
	of := units[unit]
	out := of[0]
	for _, s := range of {
		if math.Abs(value) >= s.size {
			out = s
		}
	}
	return out
}

// format returns a value with three significant digits or more.
func format(unit string, value float64) string {
	s := scaleOf(unit, value)
	if unit == currency {
		return "$" + decimals(value/s.size, 2) + s.suffix
	}
	return decimals(value/s.size, 2) + s.suffix
}

func decimals(value float64, significant int) string {
	places := 0
	if value != 0 {
		places = max(0, significant-int(math.Floor(math.Log10(math.Abs(value)))))
	}
	text := strconv.FormatFloat(value, 'f', places, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// ticks returns round values from low to a value that is at least high, in a multiple of the unit.
func ticks(unit string, low, high float64) (values []float64, labels []string) {
	if high <= low {
		high = low + 1
	}
	s := scaleOf(unit, high)
	low, high = low/s.size, high/s.size
	step := math.Pow(10, math.Floor(math.Log10((high-low)/4)))
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if (high-low)/(step*m) <= 5 {
			step *= m
			break
		}
	}
	first, last := math.Floor(low/step+1e-9), math.Ceil(high/step-1e-9)
	for i := first; i <= last; i++ {
		values = append(values, i*step*s.size)
		text := "0"
		if i != 0 {
			text = strconv.FormatFloat(math.Round(i*step*1e9)/1e9, 'f', -1, 64)
		}
		if unit == currency {
			text = "$" + text
		}
		labels = append(labels, text+s.suffix)
	}
	return values, labels
}
