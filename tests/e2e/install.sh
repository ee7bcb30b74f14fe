#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make install into a staging directory; a program built against it with pkg-config, dynamically and
# statically, runs.
. "$(dirname "$0")/lib.sh"
make -s BUILD="$build" DESTDIR="$dir/stage" PREFIX=/usr LIBDIR=/usr/lib install >"$dir/log" 2>&1
verdict "make install" [ $? = 0 ]
for f in sbin/kvd bin/kvctl bin/kvgen bin/kvbench lib/libkv.so lib/libkv.so.0 lib/libkv.a \
	lib/pkgconfig/libkv.pc include/kv/kv.h share/man/man1/kvctl.1 share/man/man8/kvd.8; do
	verdict "installs $f" [ -e "$dir/stage/usr/$f" ]
done
cat >"$dir/hello.c" <<'C'
#include <kv/kv.h>
#include <stdio.h>
int main(void)
{
	struct kv *kv;
	struct kv_info info;

	if (kv_open("embedded:host:16M", NULL, &kv) || kv_info(kv, &info))
		return 1;
	printf("%llu\n", (unsigned long long)info.pool_bytes);
	kv_close(kv);
	return 0;
}
C
export PKG_CONFIG_PATH=$dir/stage/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dir/stage
cflags=$(pkg-config --cflags libkv) libs=$(pkg-config --libs libkv) static=$(pkg-config --static --libs libkv)
# The sysroot is not applied to default directories.
gcc -Wall -Werror $cflags -I"$dir/stage/usr/include" "$dir/hello.c" -o "$dir/hello" -L"$dir/stage/usr/lib" $libs
verdict "links dynamically" [ "$(LD_LIBRARY_PATH=$dir/stage/usr/lib "$dir/hello")" = 16777216 ]
g++ -Wall -Werror -I"$dir/stage/usr/include" -x c++ -fsyntax-only "$dir/hello.c"
verdict "headers are C++ too" [ $? = 0 ]
gcc -I"$dir/stage/usr/include" "$dir/hello.c" -o "$dir/hello-static" "$dir/stage/usr/lib/libkv.a" ${static//-lkv/}
verdict "links statically" [ "$("$dir/hello-static")" = 16777216 ]
LD_LIBRARY_PATH=$dir/stage/usr/lib "$dir/stage/usr/bin/kvgen" --model "$dir/stage/usr/share/kvd/stories-mha.kvm" -n 20 >"$dir/out"
verdict "installed kvgen runs" [ -s "$dir/out" ]
exit $bad
