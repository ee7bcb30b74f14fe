#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make install into a staging directory; a program built against it with pkg-config, dynamically and
# statically, runs.
. "$(dirname "$0")/lib.sh"
make -s BUILD="$build" DESTDIR="$dir/stage" PREFIX=/usr LIBDIR=/usr/lib install >"$dir/log" 2>&1
verdict "make install" [ $? = 0 ]
for f in sbin/kvd bin/kvctl bin/kvgen bin/kvbench bin/kvreplay lib/libkv.so lib/libkv.so.0 lib/libkv.a \
	lib/pkgconfig/libkv.pc include/kv/kv.h share/man/man1/kvctl.1 share/man/man1/kvreplay.1 share/man/man8/kvd.8; do
	verdict "installs $f" [ -e "$dir/stage/usr/$f" ]
done
export PKG_CONFIG_PATH=$dir/stage/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dir/stage
cflags=$(pkg-config --cflags libkv) libs=$(pkg-config --libs libkv) static=$(pkg-config --static --libs libkv)
# The sysroot is not applied to default directories.
gcc -Wall -Werror $cflags -I"$dir/stage/usr/include" docs/example.c -o "$dir/hello" -L"$dir/stage/usr/lib" $libs
example() { [[ $(LD_LIBRARY_PATH=$dir/stage/usr/lib "$@") =~ ^$want\ of\ 100 ]]; }
want=0
verdict "links dynamically" example "$dir/hello"
echo '#include <kv/kv.h>' | g++ -Wall -Werror -I"$dir/stage/usr/include" -x c++ -fsyntax-only -
verdict "headers are C++ too" [ $? = 0 ]
gcc -I"$dir/stage/usr/include" docs/example.c -o "$dir/hello-static" "$dir/stage/usr/lib/libkv.a" ${static//-lkv/}
verdict "links statically" example "$dir/hello-static"
start_kvd --device host:16M
verdict "the example through kvd finds nothing at first" example "$dir/hello" "unix:$sock"
want=99
verdict "and its own prompt the second time" example "$dir/hello-static" "unix:$sock"
LD_LIBRARY_PATH=$dir/stage/usr/lib "$dir/stage/usr/bin/kvgen" --model "$dir/stage/usr/share/kvd/stories-mha.kvm" -n 20 >"$dir/out"
verdict "installed kvgen runs" [ -s "$dir/out" ]
exit $bad
