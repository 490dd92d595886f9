// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import "fmt"

// Colour is the colour of a text on a terminal, as its escape sequences number it. 0 is the terminal's own.
type Colour int

// The colours that tables and screens use.
const (
	Red     Colour = 31
	Green   Colour = 32
	Yellow  Colour = 33
	Blue    Colour = 34
	Magenta Colour = 35
	Cyan    Colour = 36
	Grey    Colour = 90
)

// Paint returns the text in the colour. Without colours it is the text.
func (c Colour) Paint(colours bool, text string) string {
	if !colours || c == 0 || text == "" {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", int(c), text)
}

// LevelColour is the colour of a part that is used, from 0 to 1. A part that was not measured is grey.
func LevelColour(part *float64) Colour {
	switch {
	case part == nil:
		return Grey
	case *part >= 0.9:
		return Red
	case *part >= 0.5:
		return Yellow
	}
	return Green
}

// Colour is red for a GPU with a fault, yellow for another one that claims do not get, and otherwise green.
func (g GPU) Colour() Colour {
	switch {
	case g.Health != "":
		return Red
	case g.Condition() != "ok":
		return Yellow
	}
	return Green
}

// Colour is yellow for claims that wait or that no pod uses.
func (c Claim) Colour() Colour {
	switch c.State {
	case reserved:
		return Green
	case deleting:
		return Grey
	}
	return Yellow
}

// Colour follows the need of action.
func (l Level) Colour() Colour {
	switch l {
	case Problem:
		return Red
	case Warning:
		return Yellow
	case Info:
		return Green
	}
	return Grey
}
