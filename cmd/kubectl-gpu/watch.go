// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"gpu-dra-driver/pkg/show/live"
	"gpu-dra-driver/pkg/show/view"
)

// watching draws the GPUs again and again until the user leaves.
type watching struct {
	*factory
	on       bool
	interval time.Duration
	// nodes and labels select nodes, as for ls. measured adds the use of the GPUs.
	nodes    []string
	labels   string
	measured bool
	// by is the order of the first screen.
	by string
}

// pauseFor is the least pause between two reads, as a multiple of the time of one, so that a large cluster is not read
// all the time.
const pauseFor = 4

func (w *watching) addFlags(c *cobra.Command) {
	c.Flags().BoolVarP(&w.on, "watch", "w", false, "Draw the GPUs again and again, with keys to sort and filter.")
	c.Flags().DurationVar(&w.interval, "interval", 2*time.Second,
		"Least pause between two reads of --watch. After a read that took long, the pause is four times its length.")
}

// whenOn has a command draw a screen if the user asks for it, and otherwise do what it does without.
func (w *watching) whenOn(c *cobra.Command) {
	usual := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if !w.on {
			return usual(c, args)
		}
		in, isFile := w.In.(*os.File)
		out, alsoFile := w.Out.(*os.File)
		if !isFile || !alsoFile || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
			return usageError{errors.New("--watch needs a terminal")}
		}
		if w.interval <= 0 {
			return usageError{fmt.Errorf("--interval=%s is not a positive time", w.interval)}
		}
		w.nodes, w.by = args, c.Flags().Lookup("sort-by").Value.String()
		if w.by != "" && !slices.Contains(live.Orders(), w.by) {
			return usageError{fmt.Errorf("--sort-by=%s: with --watch it must be one of %s", w.by,
				strings.Join(live.Orders(), ", "))}
		}
		if labels := c.Flags().Lookup("selector"); labels != nil {
			w.labels = labels.Value.String()
		}
		return w.draw(c.Context())
	}
}

// draw runs until the user leaves or the context ends.
func (w *watching) draw(ctx context.Context, options ...tea.ProgramOption) error {
	quiet := *w.factory
	quiet.ErrOut = io.Discard // Notes would destroy the screen.
	one := *w
	one.factory = &quiet
	options = append([]tea.ProgramOption{tea.WithContext(ctx), tea.WithInput(w.In), tea.WithOutput(w.Out)}, options...)
	_, err := tea.NewProgram(&terminal{ctx: ctx, watching: &one,
		screen: &live.Screen{Colours: w.colours(), Order: w.by}}, options...).Run()
	if ctx.Err() != nil || errors.Is(err, tea.ErrInterrupted) {
		return nil // Ctrl-C.
	}
	return err
}

// reading has the result of one read.
type reading struct {
	nodes []view.Node
	use   live.Use
	err   error
	at    time.Time
	took  time.Duration
}

// read reads the cluster once.
func (w *watching) read(ctx context.Context) (s reading) {
	ctx, cancel := w.bounded(ctx, defaultTimeout)
	defer cancel()
	began := w.now()
	defer func() { s.at, s.took = w.now(), w.now().Sub(began) }()
	o, err := w.load(ctx, want{claims: true, rules: true, nodeLabels: w.labels})
	if err != nil {
		return reading{err: err}
	}
	s.nodes, s.err = w.selected(o, w.nodes, w.labels)
	if s.err != nil || !w.measured {
		return s
	}
	found, err := w.factory.measured(ctx, w.nodes)
	if err != nil {
		return reading{err: err}
	}
	s.use = live.Use{GPUs: view.TopGPUs(found.samples), Parts: view.TopParts(found.samples)}
	return s
}

// terminal joins the screen to a terminal.
type terminal struct {
	// The library hands no context to its commands.
	ctx context.Context
	*watching
	screen *live.Screen
}

func (t *terminal) look() tea.Msg { return t.read(t.ctx) }

// Init implements tea.Model.
func (t *terminal) Init() tea.Cmd { return t.look }

// again is the end of a pause.
type again struct{}

// Update implements tea.Model.
func (t *terminal) Update(m tea.Msg) (tea.Model, tea.Cmd) {
	switch m := m.(type) {
	case tea.WindowSizeMsg:
		t.screen.Width, t.screen.Height = m.Width, m.Height
		t.screen.Key("") // The number of rows that fit has changed.
	case tea.KeyPressMsg:
		if t.screen.Key(m.String()) {
			return t, tea.Quit
		}
	case reading:
		if m.err != nil {
			t.screen.Fail(sentence(m.err))
		} else {
			t.screen.Set(m.nodes, m.use, m.at)
		}
		return t, tea.Tick(max(t.interval, pauseFor*m.took), func(time.Time) tea.Msg { return again{} })
	case again:
		return t, t.look
	}
	return t, nil
}

// View implements tea.Model.
func (t *terminal) View() tea.View {
	v := tea.NewView(t.screen.String())
	v.AltScreen = true
	return v
}
