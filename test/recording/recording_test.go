// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

//go:generate go test . -run TestDraw_CheckedInRecording -update

var update = flag.Bool("update", false, "draw the recording again")

const story = "../../docs/recording/pod-waits"

func checkedIn(t *testing.T) Cast {
	t.Helper()
	file, err := os.Open(story + ".cast")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	c, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDraw_CheckedInRecording_IsThePicture fails if one of both was changed alone.
func TestDraw_CheckedInRecording_IsThePicture(t *testing.T) {
	got, err := checkedIn(t).Draw()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(story+".svg", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(story + ".svg")
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != got {
		t.Errorf("%s.svg is not drawn from %[1]s.cast: run make generate", story)
	}
	if len(got) > 150<<10 {
		t.Errorf("the picture has %d bytes", len(got))
	}
	// Pages show it as an image, in which scripts and other files do not load.
	for _, part := range []string{"<script", "href", "url(", "@import", "<foreignObject"} {
		if strings.Contains(got, part) {
			t.Errorf("the picture has %q", part)
		}
	}
}

// TestDraw_CheckedInRecording_ShowsTheTerminalAtAnyTime reads the texts that the picture shows at a time, and compares them with
// the terminal's screen.
func TestDraw_CheckedInRecording_ShowsTheTerminalAtAnyTime(t *testing.T) {
	c := checkedIn(t)
	if end := c.at(End); end < 30 || end > 50 {
		t.Errorf("the recording takes %.0f s", end)
	}
	text, err := c.Draw()
	if err != nil {
		t.Fatal(err)
	}
	drawn := readPicture(t, text)
	frames, err := c.frames()
	if err != nil {
		t.Fatal(err)
	}
	// The picture has times of a ten-thousandth of its length.
	const rounding = 0.01
	for i, f := range frames {
		end := c.at(End)
		if i+1 < len(frames) {
			end = frames[i+1].time
		}
		if end-f.time < 2*rounding {
			continue
		}
		if diff := cmp.Diff(f.text(), drawn.at((f.time+end)/2, c)); diff != "" {
			t.Fatalf("at %.3f s (-terminal +picture):\n%s", f.time, diff)
		}
	}
}

// picture has the texts of an SVG with the parts of its time at which they are shown.
type picture struct {
	texts []drawnText
	spans map[string][2]float64
}

type drawnText struct {
	Class string `xml:"class,attr"`
	X     int    `xml:"x,attr"`
	Y     int    `xml:"y,attr"`
	Text  string `xml:",chardata"`
}

func readPicture(t *testing.T, text string) (p picture) {
	t.Helper()
	var all struct {
		Texts []drawnText `xml:"text"`
	}
	if err := xml.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	p.texts, p.spans = all.Texts, map[string][2]float64{}
	for _, rule := range regexp.MustCompile(`(?m)^@keyframes (k\d+)\{(?:0%\{visibility:hidden\})?([\d.]+)%\{visibility:visible\}(?:([\d.]+)%\{visibility:hidden\})?\}`).FindAllStringSubmatch(text, -1) {
		from, _ := strconv.ParseFloat(rule[2], 64)
		to := 100.
		if rule[3] != "" {
			to, _ = strconv.ParseFloat(rule[3], 64)
		}
		p.spans[rule[1]] = [2]float64{from / 100, to / 100}
	}
	return p
}

// at returns the screen that the picture shows.
func (p picture) at(seconds float64, c Cast) string {
	rows := make([][]rune, c.Height)
	for y := range rows {
		rows[y] = []rune(strings.Repeat(" ", c.Width))
	}
	part := seconds / c.at(End)
	for _, one := range p.texts {
		span, animated := p.spans[strings.Fields(one.Class)[0]]
		if !animated || part < span[0] || part >= span[1] {
			continue
		}
		copy(rows[(one.Y-titleBar)/cellHeight][(one.X-margin)/cellWidth:], []rune(one.Text))
	}
	out := ""
	for _, row := range rows {
		out += strings.TrimRight(string(row), " ") + "\n"
	}
	return out
}

func options(t *testing.T) Options {
	return Options{Width: 60, Height: 8, Title: "a <title>", Dir: t.TempDir(), Env: os.Environ()}
}

// TestRecord_Shell_ShowsWhatWasTypedAndPrinted has colours, letters of several bytes, a cleared screen and a comment.
func TestRecord_Shell_ShowsWhatWasTypedAndPrinted(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := Record(ctx, options(t), []Line{
		{Text: "echo gone", Pause: time.Second},
		{Text: `printf '\033[31mred\033[0m ██\n'`, Clear: true, Pause: 2 * time.Second, Poster: true},
		{Text: "# the end", Pause: time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := c.Write(&file); err != nil {
		t.Fatal(err)
	}
	again, err := Read(&file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := again.Draw()
	if err != nil {
		t.Fatal(err)
	}
	want := "$ printf '\\033[31mred\\033[0m ██\\n'\nred ██\n$\n\n\n\n\n\n"
	if diff := cmp.Diff(want, readPicture(t, text).at(c.at(Poster), c)); diff != "" {
		t.Errorf("at the poster (-want +picture):\n%s", diff)
	}
	for _, part := range []string{"<title>a &lt;title&gt;</title>", "{fill:#ff7b72}", " p"} {
		if !strings.Contains(text, part) {
			t.Errorf("the picture lacks %q", part)
		}
	}
	if last := readPicture(t, text).at(c.at(End)-0.1, c); !strings.Contains(last, "$ # the end\n$\n") {
		t.Errorf("the picture ends with\n%s", last)
	}
}

func TestRecord_CommandHangsOrShellEnds_ReturnsError(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := Record(ctx, options(t), []Line{{Text: "read line"}}); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "read line") {
		t.Errorf("a command that waits for input: %v", err)
	}
	if _, err := Record(t.Context(), options(t), []Line{{Text: "exit"}}); !errors.Is(err, errEnded) {
		t.Errorf("a shell that ends: %v", err)
	}
}

func TestRead_OtherFile_ReturnsError(t *testing.T) {
	for _, text := range []string{"", "{}\n", "x\n", `{"version":1,"width":1,"height":1}`, "{\"version\":2,\"width\":1,\"height\":1}\n{}\n"} {
		if c, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%q gives %+v", text, c)
		}
	}
}
