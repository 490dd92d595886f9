// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
)

// Line is a command, or a comment for the viewer, that is typed into the shell.
type Line struct {
	Text string
	// Pause is the time to read the output.
	Pause time.Duration
	// Clear empties the screen before.
	Clear bool
	// Poster marks the output as the picture that stands for the session.
	Poster bool
	// Before, if it is set, ends before the line is typed. A viewer does not wait for it.
	Before func(context.Context) error
}

// Options describe the terminal.
type Options struct {
	Width, Height int
	Title         string
	// Dir is the shell's working directory, Env its environment.
	Dir string
	Env []string
}

const (
	// keystroke is the time of a typed character.
	keystroke = 30 * time.Millisecond
	// idle is the longest time between two outputs of a command. A viewer need not wait for a container's start.
	idle = 400 * time.Millisecond
)

// mark is in the prompt, and not shown: the standard sequence for the begin of a prompt.
const mark = "\x1b]133;A\x07"

// Record types lines into a bash on a terminal of its own, each after the prompt. It returns an error if the context
// ends first. The times are of the session, but for typing, and for pauses of more than idle.
func Record(ctx context.Context, o Options, lines []Line) (Cast, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "--norc", "--noprofile", "-i")
	shell.Dir = o.Dir
	shell.Env = append(o.Env, "TERM=xterm-256color", "LC_ALL=C.UTF-8", "HISTFILE=", `PS1=\[`+mark+`\]\[\e[1;32m\]$\[\e[0m\] `)
	terminal, err := pty.StartWithSize(shell, &pty.Winsize{Rows: uint16(o.Height), Cols: uint16(o.Width)})
	if err != nil {
		return Cast{}, fmt.Errorf("start bash on a terminal: %w", err)
	}
	s := session{cast: Cast{Width: o.Width, Height: o.Height, Title: o.Title}, terminal: terminal, output: make(chan []byte)}
	go func() {
		defer close(s.output)
		for {
			data := make([]byte, 4096)
			n, err := terminal.Read(data)
			if err != nil {
				return
			}
			select {
			case s.output <- data[:n]:
			case <-ctx.Done():
				return
			}
		}
	}()
	err = s.run(ctx, lines)
	cancel()
	_ = terminal.Close()
	_ = shell.Wait() // It was killed.
	return s.cast, err
}

type session struct {
	cast     Cast
	terminal io.Writer
	output   chan []byte
	// clock is the time of the next event.
	clock time.Duration
	// cut is the begin of a letter whose rest was not read yet.
	cut []byte
}

func (s *session) add(kind, data string) {
	if kind == Output {
		all := append(s.cut, data...)
		whole := len(all)
		for i := 1; i <= min(len(all), utf8.UTFMax-1); i++ {
			if at := len(all) - i; utf8.RuneStart(all[at]) {
				if !utf8.FullRune(all[at:]) {
					whole = at
				}
				break
			}
		}
		data, s.cut = string(all[:whole]), bytes.Clone(all[whole:])
	}
	// The file has milliseconds, and the picture must be the same as one drawn from it.
	s.cast.Events = append(s.cast.Events, Event{Time: s.clock.Round(time.Millisecond).Seconds(), Kind: kind, Data: data})
}

func (s *session) run(ctx context.Context, lines []Line) error {
	if err := s.prompt(ctx); err != nil {
		return err
	}
	s.clock += idle
	for _, l := range lines {
		if l.Before != nil {
			if err := l.Before(ctx); err != nil {
				return fmt.Errorf("before %s: %w", l.Text, err)
			}
		}
		if l.Clear {
			s.add(Marker, Scene)
			if err := s.send(ctx, "\f"); err != nil {
				return err
			}
		}
		for _, letter := range l.Text {
			s.clock += keystroke
			if err := s.letter(ctx, string(letter)); err != nil {
				return fmt.Errorf("%s: %w", l.Text, err)
			}
		}
		s.clock += 6 * keystroke
		if err := s.send(ctx, "\r"); err != nil {
			return fmt.Errorf("%s: %w", l.Text, err)
		}
		s.clock += l.Pause
		if l.Poster {
			s.add(Marker, Poster)
		}
	}
	s.add(Marker, End)
	return nil
}

// letter types a letter and waits for its echo.
func (s *session) letter(ctx context.Context, letter string) error {
	if _, err := io.WriteString(s.terminal, letter); err != nil {
		return err
	}
	data, err := s.next(ctx)
	s.add(Output, string(data))
	return err
}

// send types keys to which the shell answers with a new prompt.
func (s *session) send(ctx context.Context, keys string) error {
	if _, err := io.WriteString(s.terminal, keys); err != nil {
		return err
	}
	return s.prompt(ctx)
}

// prompt adds output until the next prompt. A part of the prompt stays with the whole of it.
func (s *session) prompt(ctx context.Context) error {
	var all []byte
	for {
		began := time.Now()
		data, err := s.next(ctx)
		if err != nil {
			return fmt.Errorf("%w; the terminal shows %q", err, all)
		}
		s.clock += min(time.Since(began), idle)
		all = append(all, data...)
		if at := bytes.Index(all, []byte(mark)); at >= 0 && strings.HasSuffix(string(all[at:]), " ") {
			s.add(Output, string(data))
			return nil
		}
		s.add(Output, string(data))
	}
}

var errEnded = errors.New("the shell has ended")

func (s *session) next(ctx context.Context) ([]byte, error) {
	select {
	case data, ok := <-s.output:
		if !ok {
			return nil, errEnded
		}
		return data, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
