// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// root is the directory of all files in an archive.
const root = "gpu-bundle"

// missingFile lists what the archive lacks. It is the last file, and always there.
const missingFile = "missing.txt"

// Archive is a tar file, compressed by `gzip`. It is not safe for concurrent use. After an error of the writer it
// ignores further files, and Close returns the error.
type Archive struct {
	at      time.Time
	left    int64
	gzip    *gzip.Writer
	tar     *tar.Writer
	files   int
	missing []string
	err     error
}

// New starts an archive whose files have at most limit bytes together, uncompressed. All files have the given time.
func New(w io.Writer, at time.Time, limit int64) *Archive {
	z := gzip.NewWriter(w)
	return &Archive{at: at, left: limit, gzip: z, tar: tar.NewWriter(z)}
}

// Add writes a file, without secrets. A file that does not fit is listed as missing.
func (a *Archive) Add(name string, data []byte) {
	data = RedactText(data)
	if int64(len(data)) > a.left {
		a.Missing("%s: it has %d bytes, and the archive is full; --max-size sets its size", name, len(data))
		return
	}
	a.left -= int64(len(data))
	a.write(name, data)
}

// Full reports whether less than so many bytes are left.
func (a *Archive) Full(bytes int64) bool { return a.left < bytes }

// Missing notes what the archive lacks, and why.
func (a *Archive) Missing(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
	if !slices.Contains(a.missing, text) {
		a.missing = append(a.missing, text)
	}
}

func (a *Archive) write(name string, data []byte) {
	if a.err != nil {
		return
	}
	a.err = a.tar.WriteHeader(&tar.Header{
		Name:     root + "/" + safe(name),
		Typeflag: tar.TypeReg,
		Mode:     0o600,
		Size:     int64(len(data)),
		ModTime:  a.at,
		Format:   tar.FormatPAX,
	})
	if a.err == nil {
		_, a.err = a.tar.Write(data)
		a.files++
	}
}

// safe removes what could lead out of the archive's directory. Names come from API objects.
func safe(name string) string {
	parts := strings.Split(strings.ReplaceAll(name, `\`, "_"), "/")
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" || p == "." || p == ".." }), "/")
}

// Close writes the list of what is missing, and ends the archive. It returns the number of files and of missing parts.
func (a *Archive) Close() (files, missing int, err error) {
	text := "Nothing is missing.\n"
	if len(a.missing) > 0 {
		text = strings.Join(a.missing, "\n") + "\n"
	}
	a.write(missingFile, RedactText([]byte(text)))
	for _, end := range []func() error{a.tar.Close, a.gzip.Close} {
		if err := end(); a.err == nil {
			a.err = err
		}
	}
	if a.err != nil {
		return 0, 0, fmt.Errorf("write the archive: %w", a.err)
	}
	return a.files, len(a.missing), nil
}
