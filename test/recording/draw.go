// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"cmp"
	"fmt"
	"html"
	"image/color"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/vt"
)

// Sizes of the picture, in pixels.
const (
	cellWidth, cellHeight = 8, 18
	margin, titleBar      = 16, 34
)

// palette has the colours of a terminal, which are legible on its background. The picture brings its own background, so that
// it looks the same on light and on dark pages.
var palette = map[ansi.BasicColor]string{
	ansi.Red: "#ff7b72", ansi.Green: "#7ee787", ansi.Yellow: "#e3b341", ansi.Blue: "#79c0ff", ansi.Magenta: "#d2a8ff", ansi.Cyan: "#76e3ea",
	ansi.BrightBlack: "#9aa4b0",
}

const (
	background, foreground, frameColour = "#0d1117", "#e6edf3", "#3d444d"
)

// cell is a letter on the screen. The zero cell is empty.
type cell struct {
	text   string
	colour string
	bold   bool
}

func (c cell) blank() bool { return c.text == "" || c.text == " " }

func (c cell) style() [2]any { return [2]any{c.colour, c.bold} }

// frame is the screen from a time on.
type frame struct {
	time  float64
	cells [][]cell
}

// text returns the letters of the screen, a line for each row.
func (f frame) text() string {
	var out strings.Builder
	for _, row := range f.cells {
		line := ""
		for _, one := range row {
			line += cmp.Or(one.text, " ")
		}
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return out.String()
}

// Screens returns the text of each screen before it is cleared, and of the last one.
func (c Cast) Screens() (out []string, err error) {
	last := frame{}
	err = c.play(func(e Event, f frame) {
		if e.Kind == Output {
			last = f
		} else if e.Data == Scene || e.Data == End {
			out = append(out, last.text())
		}
	})
	return out, err
}

// frames returns the screens of the recording. Equal ones are one frame.
func (c Cast) frames() (out []frame, err error) {
	err = c.play(func(e Event, f frame) {
		switch last := len(out) - 1; {
		case e.Kind != Output:
		case last >= 0 && out[last].time == f.time:
			out[last] = f
		case last < 0 || !slices.EqualFunc(out[last].cells, f.cells, slices.Equal):
			out = append(out, f)
		}
	})
	return out, err
}

// play calls visit with each event and, for outputs, the screen after it.
func (c Cast) play(visit func(Event, frame)) (err error) {
	terminal := vt.NewEmulator(c.Width, c.Height)
	// The emulator answers queries, and would wait for a reader.
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, terminal)
	}()
	defer func() {
		err = cmp.Or(err, terminal.Close())
		<-drained
	}()
	for _, e := range c.Events {
		f := frame{time: e.Time}
		if e.Kind == Output {
			if _, err := terminal.WriteString(e.Data); err != nil {
				return fmt.Errorf("play the recording at %.3f s: %w", e.Time, err)
			}
			f.cells = screen(terminal)
		}
		visit(e, f)
	}
	return nil
}

func screen(terminal *vt.Emulator) [][]cell {
	cells := make([][]cell, terminal.Height())
	for y := range cells {
		cells[y] = make([]cell, terminal.Width())
		for x := range cells[y] {
			if c := terminal.CellAt(x, y); c != nil && c.Content != " " {
				cells[y][x] = cell{c.Content, hex(c.Style.Fg), c.Style.Attrs&attrBold != 0}
			}
		}
	}
	return cells
}

// attrBold is the terminal's bit for bold text.
const attrBold = 1

// hex returns a colour for CSS, or an empty text for the default.
func hex(c color.Color) string {
	if c == nil {
		return ""
	}
	if basic, ok := c.(ansi.BasicColor); ok {
		return palette[basic]
	}
	r, g, b, _ := c.RGBA()
	return fmt.Sprintf("#%02x%02x%02x", r>>8, g>>8, b>>8)
}

// piece is a text in one line of the screen, for as long as nothing changes there.
type piece struct {
	row, column int
	cells       []cell
	from, to    float64
}

// pieces cuts the frames into texts, so that a letter that stays is drawn once.
func pieces(frames []frame, end float64) (out []piece) {
	if len(frames) == 0 {
		return nil
	}
	shown := make([][]piece, len(frames[0].cells)) // by row
	var before [][]cell
	for _, f := range frames {
		for y, row := range f.cells {
			if before != nil && slices.Equal(before[y], row) {
				continue
			}
			covered := make([]bool, len(row))
			shown[y] = slices.DeleteFunc(shown[y], func(p piece) bool {
				stays := slices.Equal(p.cells, row[p.column:p.column+len(p.cells)])
				if !stays {
					p.to = f.time
					out = append(out, p)
				}
				for i := range p.cells {
					covered[p.column+i] = covered[p.column+i] || stays
				}
				return !stays
			})
			shown[y] = append(shown[y], cut(y, row, covered, f.time)...)
		}
		before = f.cells
	}
	for _, row := range shown {
		for _, p := range row {
			p.to = end
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b piece) int {
		return cmp.Or(cmp.Compare(a.from, b.from), a.row-b.row, a.column-b.column)
	})
	return out
}

// cut returns the texts of a row that are not covered, each of one style and without blanks at its ends. Browsers join two blanks.
func cut(y int, row []cell, covered []bool, from float64) (out []piece) {
	for x := 0; x < len(row); {
		if covered[x] || row[x].blank() {
			x++
			continue
		}
		end := x + 1
		for i := end; i < min(len(row), end+2) && !covered[i] && (row[i].blank() || row[i].style() == row[x].style()); i++ {
			if !row[i].blank() {
				end = i + 1
			}
		}
		out = append(out, piece{row: y, column: x, cells: row[x:end], from: from})
		x = end
	}
	return out
}

// Draw returns the recording as an animated SVG. Its animation is CSS alone, since an image of a page runs no script.
func (c Cast) Draw() (string, error) {
	frames, err := c.frames()
	if err != nil {
		return "", err
	}
	end, poster := c.at(End), c.at(Poster)
	if end <= 0 {
		return "", fmt.Errorf("the recording lasts %.3f s", end)
	}
	width, height := c.Width*cellWidth+2*margin, c.Height*cellHeight+titleBar+margin
	percent := func(t float64) string { return fmt.Sprintf("%.2f%%", 100*t/end) }

	var body, rules strings.Builder
	spans, classes := map[[2]string]string{}, map[string]string{}
	for _, p := range pieces(frames, end) {
		key := [2]string{percent(p.from), percent(p.to)}
		if key[0] == key[1] {
			continue
		}
		span, known := spans[key]
		if !known {
			span = fmt.Sprintf("k%d", len(spans))
			spans[key] = span
			rule := key[0] + "{visibility:visible}"
			if p.from > 0 {
				rule = "0%{visibility:hidden}" + rule
			}
			if p.to < end {
				rule += key[1] + "{visibility:hidden}"
			}
			fmt.Fprintf(&rules, "@keyframes %s{%s}.%[1]s{animation-name:%[1]s}\n", span, rule)
		}
		class := span
		if p.from <= poster && poster < p.to {
			class += " p"
		}
		if colour := p.cells[0].colour; colour != "" {
			if classes[colour] == "" {
				classes[colour] = fmt.Sprintf("c%d", len(classes))
			}
			class += " " + classes[colour]
		}
		if p.cells[0].bold {
			class += " b"
		}
		var text strings.Builder
		for _, one := range p.cells {
			text.WriteString(cmp.Or(one.text, " "))
		}
		length := ""
		if n := utf8.RuneCountInString(text.String()); n > 1 {
			length = fmt.Sprintf(` textLength="%d"`, n*cellWidth)
		}
		fmt.Fprintf(&body, `<text class="%s" x="%d" y="%d"%s>%s</text>`+"\n", class,
			margin+p.column*cellWidth, titleBar+p.row*cellHeight+cellHeight-5, length, html.EscapeString(text.String()))
	}

	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img">
<title>%s</title>
<style>
text{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace;fill:%s;visibility:hidden;animation:%.3fs step-end infinite}
.p,.t{visibility:visible}.t{animation:none;fill:#9aa4b0}.b{font-weight:bold}
.bar{transform-origin:0 0;animation:bar %.3[5]fs linear infinite}@keyframes bar{from{transform:scaleX(0)}}
@media(prefers-reduced-motion:reduce){text,.bar{animation:none}}
`, width, height, html.EscapeString(c.Title), foreground, end)
	for _, colour := range slices.Sorted(maps.Keys(classes)) {
		fmt.Fprintf(&out, ".%s{fill:%s}", classes[colour], colour)
	}
	fmt.Fprintf(&out, "\n%s</style>\n", rules.String())
	fmt.Fprintf(&out, `<rect x=".5" y=".5" width="%d" height="%d" rx="8" fill="%s" stroke="%s"/>`+"\n", width-1, height-1, background, frameColour)
	for i, colour := range []string{"#ff5f57", "#febc2e", "#28c840"} {
		fmt.Fprintf(&out, `<circle cx="%d" cy="17" r="5" fill="%s"/>`, margin+5+18*i, colour)
	}
	fmt.Fprintf(&out, "\n"+`<text class="t" x="%d" y="22" text-anchor="middle">%s</text>`+"\n", width/2, html.EscapeString(c.Title))
	fmt.Fprintf(&out, `<rect class="bar" x="0" y="%d" width="%d" height="2" fill="%s"/>`+"\n", titleBar-4, width, frameColour)
	out.WriteString(body.String() + "</svg>\n")
	return out.String(), nil
}
