// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package recording records a session of a terminal, and draws it as an animated SVG that needs no script.
package recording

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// Cast is a recorded session. Its file has the format `asciicast` v2, which other players read too.
type Cast struct {
	Width, Height int
	Title         string
	Events        []Event
}

// Event is a change at a time, in seconds.
type Event struct {
	Time float64
	// Kind is Output or Marker. Players ignore other kinds.
	Kind string
	// Data is the output, or the marker's name.
	Data string
}

const (
	// Output marks the text that a program wrote to the terminal.
	Output = "o"
	// Marker names a time of the session.
	Marker = "m"
)

// Names of markers.
const (
	// Poster is the time of the picture that stands for the session where nothing moves.
	Poster = "poster"
	// Scene is the end of a screen, before it is cleared.
	Scene = "scene"
	// End is the end of the session, after a pause to read.
	End = "end"
)

type header struct {
	Version int    `json:"version"`
	Width   int    `json:"width"`
	Height  int    `json:"height"`
	Title   string `json:"title,omitempty"`
	// Idle is the longest pause, in seconds. Longer ones of the session were shortened to it.
	Idle float64 `json:"idle_time_limit,omitempty"`
}

// Write writes the file.
func (c Cast) Write(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(header{Version: 2, Width: c.Width, Height: c.Height, Title: c.Title, Idle: idle.Seconds()}); err != nil {
		return err
	}
	for _, e := range c.Events {
		if err := encoder.Encode([]any{json.Number(fmt.Sprintf("%.3f", e.Time)), e.Kind, e.Data}); err != nil {
			return err
		}
	}
	return nil
}

// Read reads the file.
func Read(r io.Reader) (c Cast, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if n == 1 {
			var h header
			if err := json.Unmarshal(line, &h); err != nil || h.Version != 2 || h.Width <= 0 || h.Height <= 0 {
				return c, fmt.Errorf("line 1 is not a header of asciicast v2: %s", line)
			}
			c.Width, c.Height, c.Title = h.Width, h.Height, h.Title
			continue
		}
		var e Event
		if err := json.Unmarshal(line, &[]any{&e.Time, &e.Kind, &e.Data}); err != nil {
			return c, fmt.Errorf("line %d is not an event: %w", n, err)
		}
		c.Events = append(c.Events, e)
	}
	if c.Width == 0 && lines.Err() == nil {
		return c, fmt.Errorf("the recording is empty")
	}
	return c, lines.Err()
}

// at returns the time of the last marker of a name, or the end of the session.
func (c Cast) at(marker string) (t float64) {
	for _, e := range c.Events {
		if t = e.Time; e.Kind == Marker && e.Data == marker {
			return t
		}
	}
	return t
}
