// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// placeholderLibrary is the smallest shared object that ldconfig and the dynamic loader accept: a SONAME and no symbols.
func placeholderLibrary(soname string) []byte {
	const (
		headerSize  = 64
		programSize = 56
		programs    = 2
		dynAt       = headerSize + programs*programSize
		dynCount    = 7
		symAt       = dynAt + dynCount*16
		hashAt      = symAt + 24
		strAt       = hashAt + 16
	)
	str := append(append([]byte{0}, soname...), 0)
	size := uint64(strAt + len(str))

	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // a bytes.Buffer does not fail
	put(elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Phoff: headerSize, Ehsize: headerSize, Phentsize: programSize, Phnum: programs, Shentsize: 64,
	})
	put(elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Filesz: size, Memsz: size, Align: 0x1000})
	put(elf.Prog64{Type: uint32(elf.PT_DYNAMIC), Flags: uint32(elf.PF_R | elf.PF_W), Off: dynAt, Vaddr: dynAt, Paddr: dynAt,
		Filesz: dynCount * 16, Memsz: dynCount * 16, Align: 8})
	for _, d := range []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: 1}, {Tag: int64(elf.DT_HASH), Val: hashAt}, {Tag: int64(elf.DT_STRTAB), Val: strAt},
		{Tag: int64(elf.DT_SYMTAB), Val: symAt}, {Tag: int64(elf.DT_STRSZ), Val: uint64(len(str))}, {Tag: int64(elf.DT_SYMENT), Val: 24},
		{Tag: int64(elf.DT_NULL)},
	} {
		put(d)
	}
	put(elf.Sym64{})
	put([4]uint32{1, 1, 0, 0}) // one bucket, one chain entry, both empty
	b.Write(str)
	return b.Bytes()
}
