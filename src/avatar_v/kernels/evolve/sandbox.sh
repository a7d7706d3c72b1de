# The room of a candidate's process: run by sandbox.py in new mount, process, network, IPC and name
# namespaces as their first process. $1: an empty folder that becomes the root; $2: folders and
# files of this machine to be seen, read-only, one a line; $3: the folder of the candidate, seen as
# /box; $4: MiB of /tmp; the rest: the command. Nothing else of the machine's files is there.
set -eu
root=$1 places=$2 box=$3 files=$4
shift 4
mount -t tmpfs -o size=4m,mode=755,nosuid room "$root"
mkdir "$root/box" "$root/tmp" "$root/proc" "$root/old" "$root/dev" "$root/etc"
mount -t tmpfs -o "size=${files}m,mode=1777,nosuid,nodev" files "$root/tmp"
for link in /bin /sbin /lib /lib64; do
    if [ -L "$link" ]; then cp -P "$link" "$root$link"; fi
done
printf '%s\n' "$places" | while read -r place; do
    if [ -d "$place" ]; then
        mkdir -p "$root$place"
    else
        mkdir -p "$root${place%/*}"
        : > "$root$place"
    fi
    case $place in
        /dev/*) mount --bind "$place" "$root$place" ;;
        *) mount --bind -o ro,nosuid,nodev "$place" "$root$place" ;;
    esac
done
mount --bind -o ro,nosuid,nodev "$box" "$root/box"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
# no shared memory of System V, which no process need hold; older kernels let root alone say so
echo 0 2> /dev/null > "$root/proc/sys/kernel/shmall" || true
cd "$root"
pivot_root . old
umount -l /old
rmdir /old
mount -o remount,bind,ro,nosuid /
cp /box/* /tmp
cd /tmp
exec "$@"
