// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"slices"
	"strings"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/topology"
)

// Sizes are in pixels, colours by the number of links or the size of a group.
const (
	step, box, margin = 84, 58, 26
	level             = 26
)

var groupColours = map[int]string{2: "#0b6e4f", 4: "#2a6f97", 8: "#7b2d8b"}

// Draw returns a picture of a board as SVG: the GPUs in link order, above them their NVLinks, below them the groups.
func Draw(title string, s gpu.Snapshot) string {
	islands := topology.Find(s.GPUs)
	order := slices.Clone(s.GPUs)
	var addresses []string
	for _, g := range order {
		addresses = append(addresses, g.PCIAddress)
	}
	at := map[string]int{}
	for n, address := range topology.Sort(s.GPUs, addresses) {
		at[address] = n
	}
	slices.SortFunc(order, func(a, b gpu.GPU) int { return at[a.PCIAddress] - at[b.PCIAddress] })

	top := margin + 40 + height(order, at, islands)
	sizes := sizesOf(islands)
	width, bottom := 2*margin+max(len(order)*step, 8*len(title)), top+box+14+len(sizes)*level+margin
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n", width, bottom)
	fmt.Fprintf(&b, "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n<text x=\"%d\" y=\"%d\" font-size=\"13\">%s</text>\n", width, bottom, margin, margin, title)
	x := func(n int) int { return margin + n*step + box/2 }
	links(&b, order, at, islands, x, top)
	for n, g := range order {
		fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\" fill=\"#eef1f4\" stroke=\"#333\"/>\n", x(n)-box/2, top, box, box)
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" font-size=\"13\">GPU %d</text>\n", x(n), top+24, g.Index)
		if g.NUMANode != nil {
			fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"#555\">NUMA %d</text>\n", x(n), top+42, *g.NUMANode)
		}
	}
	for _, i := range islands {
		for _, g := range i.Groups {
			row := slices.Index(sizes, len(g.Members))
			first, last := at[g.Members[0]], at[g.Members[len(g.Members)-1]]
			y := top + box + 14 + row*level
			fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"9\" fill=\"%s\"/>\n", x(first)-box/2, y, x(last)-x(first)+box, level-8, groupColours[len(g.Members)])
			fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" fill=\"#ffffff\">%d</text>\n", (x(first)+x(last))/2, y+13, len(g.Members))
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func sizesOf(islands []topology.Island) []int {
	var out []int
	for _, i := range islands {
		for _, g := range i.Groups {
			out = append(out, len(g.Members))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// height is the height of the links above the GPUs.
func height(order []gpu.GPU, at map[string]int, islands []topology.Island) int {
	if len(islands) == 0 {
		return 0
	}
	if islands[0].Switched {
		return 30
	}
	far := 0
	for _, g := range order {
		for _, l := range g.Links {
			far = max(far, at[l.PeerAddress]-at[g.PCIAddress])
		}
	}
	return 16 * far
}

// links draws a bar for the switches with a line from each GPU, or an arc between two GPUs whose width is the number
// of links.
func links(b *strings.Builder, order []gpu.GPU, at map[string]int, islands []topology.Island, x func(int) int, top int) {
	if len(islands) == 0 {
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" fill=\"#555\">no NVLink: no groups</text>\n", margin, margin+24)
		return
	}
	if islands[0].Switched {
		y := top - 40
		for n, g := range order {
			fmt.Fprintf(b, "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\" stroke=\"#8a5a00\" stroke-width=\"3\"/>\n", x(n), x(n), y, top)
			fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" fill=\"#555\">%d</text>\n", x(n)+5, top-6, len(g.Links))
		}
		fmt.Fprintf(b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"20\" rx=\"4\" fill=\"#f4d58d\" stroke=\"#8a5a00\"/>\n", x(0)-box/2, y-20, x(len(order)-1)-x(0)+box)
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">NVSwitch</text>\n", (x(0)+x(len(order)-1))/2, y-6)
		return
	}
	for _, g := range order {
		count := map[string]int{}
		for _, l := range g.Links {
			count[l.PeerAddress]++
		}
		for _, other := range order {
			n, from, to := count[other.PCIAddress], at[g.PCIAddress], at[other.PCIAddress]
			if n == 0 || from >= to {
				continue
			}
			rise := 32 * (to - from)
			fmt.Fprintf(b, "<path d=\"M %d %d C %d %d, %d %d, %d %d\" fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\"><title>GPU %d and GPU %d: %d NVLinks</title></path>\n",
				x(from), top, x(from), top-rise*2/3, x(to), top-rise*2/3, x(to), top, map[bool]string{true: "#8a5a00", false: "#d9a441"}[n > 1], 1+1.5*float64(min(n, 4)-1), g.Index, other.Index, n)
		}
	}
}
