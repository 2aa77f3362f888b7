// A file system in the memory of a Go program, by cgo: a full disk, and what is left of a file after it.
//
//	CGO_CFLAGS=$(pkg-config --cflags sluice) CGO_LDFLAGS=$(pkg-config --libs sluice) go run .
package main

/*
#include <fcntl.h>
#include <stdlib.h>
#include <sluice.h>
*/
import "C"

import (
	"fmt"
	"log"
	"sync"
	"syscall"
	"unsafe"
)

// check ends the program for a result that is an error.
func check[T ~int32 | ~int64](what string, result T) int {
	if result < 0 {
		log.Fatalf("%s: %v", what, syscall.Errno(-result))
	}
	return int(result)
}

// write makes the file path with the contents data, and gives the error of the write.
func write(process *C.struct_sluice_process, path string, data []byte) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	fd := C.int(check("open "+path, C.sluice_open(process, name, C.O_WRONLY|C.O_CREAT, 0o644)))
	defer C.sluice_close(process, fd)
	if written := C.sluice_write(process, fd, unsafe.Pointer(&data[0]), C.size_t(len(data))); written < 0 {
		return syscall.Errno(-written)
	}
	return nil
}

func main() {
	var fs *C.struct_sluice_fs
	check("new", C.sluice_fs_new(nil, &fs))
	defer C.sluice_fs_close(fs)
	var process *C.struct_sluice_process
	check("process", C.sluice_process_new(fs, 0, 0, nil, 0, &process))
	defer C.sluice_process_free(process)

	var threads sync.WaitGroup
	for thread := range 8 {
		threads.Add(1)
		go func() {
			defer threads.Done()
			if err := write(process, fmt.Sprintf("/file%d", thread), []byte("hello")); err != nil {
				log.Fatal(err)
			}
		}()
	}
	threads.Wait()
	fmt.Println("inconsistencies:", check("check", C.sluice_fs_check(fs)))

	rule := C.CString("write:ENOSPC:path=/log")
	defer C.free(unsafe.Pointer(rule))
	check("inject", C.sluice_fs_inject(fs, rule))
	fmt.Println("write to a full disk:", write(process, "/log", []byte("line")))
}
