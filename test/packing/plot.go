// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
)

var colours = map[string]string{"ours": "#0b6e4f", "mirrored": "#4c9f70", "naive": "#c1666b", "random": "#d4a373", "best fixed": "#22223b"}

// series is a curve: a value for each load.
type series struct {
	name   string
	values []float64
}

// draw writes one chart for each mix, acceptance over load, as SVG.
func draw(path string, loads []float64, charts map[string][]series) error {
	const width, height, left, top = 300, 220, 46, 34
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`, (width+left)*len(mixes)+20, height+110)
	for n, m := range mixes {
		low := 100.0
		for _, s := range charts[m.name] {
			for _, v := range s.values {
				low = min(low, v)
			}
		}
		low = float64(int(low/5) * 5)
		x := func(i int) float64 {
			return float64(n*(width+left)+left) + float64(i)*float64(width-30)/float64(len(loads)-1)
		}
		y := func(v float64) float64 { return top + height*(100-v)/(100-low) }
		fmt.Fprintf(&b, `<text x="%.0f" y="20" font-size="13">mix: %s — accepted, %%</text>`, x(0), m.name)
		for v := low; v <= 100; v += (100 - low) / 4 {
			fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%.1f" y="%.1f" text-anchor="end">%.0f</text>`,
				x(0), x(len(loads)-1), y(v), y(v), x(0)-6, y(v)+4, v)
		}
		for i, load := range loads {
			fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%.0f %%</text>`, x(i), top+height+16, 100*load)
		}
		for k, s := range charts[m.name] {
			var points []string
			for i, v := range s.values {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(i), y(v)))
			}
			fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`, colours[s.name], strings.Join(points, " "))
			fmt.Fprintf(&b, `<text x="%.1f" y="%d" fill="%s">%s</text>`, x(0)+float64(k%3)*95, top+height+40+k/3*16, colours[s.name], s.name)
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%d">load, share of the memory slices asked for</text>`, x(0), top+height+74)
	}
	b.WriteString("</svg>\n")
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
