#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make install of what was built for another prefix into a staging directory; a program built against
# it with what pkg-config says and nothing else, dynamically and statically, runs.
. "$(dirname "$0")/lib.sh"
root=$dir/stage/opt/kvd
make -s BUILD="$build" DESTDIR="$dir/stage" PREFIX=/opt/kvd LIBDIR=/opt/kvd/lib64 install >"$dir/log" 2>&1
verdict "make install" [ $? = 0 ]
for f in sbin/kvd bin/kvctl bin/kvgen bin/kvbench bin/kvreplay lib64/libkv.so lib64/libkv.so.0 lib64/libkv.a \
	lib64/pkgconfig/libkv.pc include/kv/kv.h share/man/man1/kvctl.1 share/man/man1/kvreplay.1 share/man/man8/kvd.8; do
	verdict "installs $f" [ -e "$root/$f" ]
done
export PKG_CONFIG_PATH=$root/lib64/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dir/stage
cflags=$(pkg-config --cflags libkv) libs=$(pkg-config --libs libkv) static=$(pkg-config --static --libs libkv)
verdict "libkv.pc names where it was installed" grep -qx prefix=/opt/kvd "$root/lib64/pkgconfig/libkv.pc"
gcc -Wall -Werror $cflags docs/example.c -o "$dir/hello" $libs
example() { [[ $(LD_LIBRARY_PATH=$root/lib64 "$@") =~ ^$want\ of\ 100 ]]; }
want=0
verdict "links dynamically" example "$dir/hello"
echo '#include <kv/kv.h>' | g++ -Wall -Werror $cflags -x c++ -fsyntax-only -
verdict "headers are C++ too" [ $? = 0 ]
gcc $cflags docs/example.c -o "$dir/hello-static" "$root/lib64/libkv.a" ${static//-lkv/}
verdict "links statically" example "$dir/hello-static"
gcc -Wall -Werror $cflags docs/example-mla.c -o "$dir/mla" $libs
mla() { [[ $(LD_LIBRARY_PATH=$root/lib64 "$dir/mla") =~ ^33\ tokens,\ scale\ 0\.382499 ]]; }
verdict "an MLA layer from its weights" mla
start_kvd --device host:16M
verdict "the example through kvd finds nothing at first" example "$dir/hello" "unix:$sock"
want=99
verdict "and its own prompt the second time" example "$dir/hello-static" "unix:$sock"
LD_LIBRARY_PATH=$root/lib64 "$root/bin/kvgen" --model "$root/share/kvd/stories-mha.kvm" -n 20 >"$dir/out"
verdict "installed kvgen runs" [ -s "$dir/out" ]
exit $bad
