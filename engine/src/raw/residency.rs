//! What of the program's files lies in memory: code that only the start needed can go.
//!
//! A program of some megabytes touches half of its code when it reads its options and sets itself up, and hardly any of that
//! again. The kernel counts those pages as the process's until memory is scarce; given back, they come from the page
//! cache again one window (64 KiB) at a time, as they are needed.
//!
//! Only the segments go that the executable and its libraries were loaded with. Any other mapping may have gone between the look at
//! `/proc/self/smaps` and the call, and its address may belong to memory that exists nowhere else: a panic's backtrace maps the
//! program's file for a moment.

#[cfg(target_os = "linux")]
use super::SYSTEM_PAGE;
#[cfg(target_os = "linux")]
use std::ffi::{CStr, CString};
use std::fs;
use std::ops::Range;

/// A line of `/proc/self/smaps` about one mapping, and what the lines behind it say.
struct Region {
    start: usize,
    end: usize,
    /// `r-xp` and the like.
    access: String,
    /// Where in the file it begins.
    offset: u64,
    is_of_file: bool,
    resident_kib: u64,
    /// Pages that differ from the file's, or lie in no file.
    anonymous_kib: Option<u64>,
    /// Such pages that the kernel has moved out: not counted as anonymous, yet nowhere else to be had.
    swapped_kib: Option<u64>,
    is_locked: bool,
}

impl Region {
    /// Returns true if all its pages can be had again from the file. Only where a program's file has code, or its very beginning: what
    /// the dynamic linker has written addresses into and made read-only then (RELRO) lies in neither.
    fn can_go(&self) -> bool {
        let is_untouched = self.access == "r-xp" || (self.access == "r--p" && self.offset == 0);
        let is_unchanged = self.anonymous_kib == Some(0) && self.swapped_kib == Some(0);
        self.is_of_file && is_untouched && is_unchanged && !self.is_locked
    }

    /// Returns true if all of it lies in one of these segments, which stay as long as the process, so that nothing else ever comes to lie there.
    fn is_within(&self, segments: &[Range<usize>]) -> bool {
        segments.iter().any(|segment| segment.start <= self.start && self.end <= segment.end)
    }
}

/// Gives back the memory of the process that holds nothing but unchanged pages of its executable and its libraries (code, and
/// constants without addresses in them), and what the general allocator keeps without need. Returns how many bytes were resident in them. Costs a fault
/// for each 64 KiB that are needed again. Elsewhere than on Linux, and for locked memory, it does nothing.
pub fn release_start_up_memory() -> u64 {
    trim_allocator();
    // A process without a descriptor left cannot read it; it keeps what it has.
    let Ok(smaps) = fs::read_to_string("/proc/self/smaps") else { return 0 };
    let own = lasting_segments();
    let mut released = 0;
    for region in regions(&smaps).into_iter().filter(|region| region.can_go() && region.is_within(&own)) {
        // SAFETY: this is a part of the executable or of a library as it was loaded (`lasting_segments`): its mapping stays as long
        // as the process, so the address cannot have become another's since the kernel was asked. The segment was loaded without write
        // access, and the kernel has just said that no page of it differs from the file's, be it in memory (`Anonymous`) or moved
        // out (`Swap`). Such pages hold no byte that the file does not: a thread that reads or executes one finds it mapped
        // again from the same file, which the mapping itself keeps.
        let outcome = unsafe {
            libc::madvise(
                std::ptr::without_provenance_mut::<libc::c_void>(region.start),
                region.end - region.start,
                libc::MADV_DONTNEED,
            )
        };
        if outcome == 0 {
            released += region.resident_kib * 1024;
        }
    }
    released
}

/// Returns where the segments of the executable and of its libraries lie that were loaded without write access, in whole pages. They
/// stay there as long as the process: libraries are kept from being unloaded first. What the dynamic linker relocates is loaded with
/// write access, also where that is taken away later.
#[cfg(target_os = "linux")]
fn lasting_segments() -> Vec<Range<usize>> {
    let is_kept = |name: &CString| {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: the name is alive and ends with a zero; nothing is loaded, so no code of a library runs. The handle is never closed.
        !unsafe { libc::dlopen(name.as_ptr(), flags) }.is_null()
    };
    let names = loaded_objects().into_iter().skip(1).map(|object| object.name);
    let kept: Vec<CString> = names.filter(is_kept).collect();
    // Those that were loaded before they were kept, by their places of now.
    let objects = loaded_objects().into_iter().enumerate();
    let lasting = objects.filter(|(number, object)| *number == 0 || kept.contains(&object.name));
    lasting.flat_map(|(_, object)| object.segments).collect()
}

#[cfg(not(target_os = "linux"))]
fn lasting_segments() -> Vec<Range<usize>> {
    Vec::new()
}

/// The executable or a library.
#[cfg(target_os = "linux")]
struct LoadedObject {
    name: CString,
    /// Where its segments without write access lie.
    segments: Vec<Range<usize>>,
}

/// Returns all of them, the executable first.
#[cfg(target_os = "linux")]
fn loaded_objects() -> Vec<LoadedObject> {
    extern "C" fn see(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        into: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: `dl_iterate_phdr` shows a structure that is alive during this call, with a name that ends with a zero, and hands
        // on the pointer that it was given below: to a vector that nobody else has.
        let (info, into) = unsafe { (&*info, &mut *into.cast::<Vec<LoadedObject>>()) };
        // SAFETY: the same; an object's headers are in memory as long as it is loaded, as many as the structure says.
        let (name, headers) = unsafe {
            let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
            (CStr::from_ptr(info.dlpi_name).to_owned(), headers)
        };
        let read_only = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0);
        let segments = read_only.map(|header| {
            let start = info.dlpi_addr as usize + header.p_vaddr as usize;
            // The loader maps whole pages.
            start / SYSTEM_PAGE * SYSTEM_PAGE..(start + header.p_memsz as usize).next_multiple_of(SYSTEM_PAGE)
        });
        into.push(LoadedObject { name, segments: segments.collect() });
        0
    }
    let mut objects: Vec<LoadedObject> = Vec::new();
    // SAFETY: `see` gets the pointer to the vector back while this call lasts, and does not unwind: nothing in it panics but a
    // failing allocation, which ends the process.
    unsafe { libc::dl_iterate_phdr(Some(see), (&raw mut objects).cast()) };
    objects
}

/// Keeps the general allocator from keeping much: blocks from 1 MiB on have mappings of their own, which are given back with them. By
/// itself it raises that border, up to 32 MiB, with each such block that is freed, and keeps twice as much in each thread's heap.
pub fn bound_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets numbers of the allocator's under its own lock; no pointer is involved.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
    }
}

/// Gives back what the general allocator keeps without need. Takes the longer the more there is.
pub fn trim_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes the allocator's own locks and gives back pages that hold only free memory; no pointer is involved.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn regions(smaps: &str) -> Vec<Region> {
    let mut regions: Vec<Region> = Vec::new();
    for line in smaps.lines() {
        if let Some(region) = header(line) {
            regions.push(region);
            continue;
        }
        let Some(region) = regions.last_mut() else { continue };
        let Some((name, value)) = line.split_once(':') else { continue };
        let kib = || value.trim().strip_suffix(" kB").and_then(|number| number.parse().ok());
        match name {
            "Rss" => region.resident_kib = kib().unwrap_or(0),
            "Anonymous" => region.anonymous_kib = kib(),
            "Swap" => region.swapped_kib = kib(),
            "VmFlags" => region.is_locked = value.split_whitespace().any(|flag| flag == "lo"),
            _ => {}
        }
    }
    regions
}

/// `START-END ACCESS OFFSET DEVICE INODE PATH`, the numbers before ACCESS in hexadecimal.
fn header(line: &str) -> Option<Region> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let access = words.next()?;
    let (offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
    Some(Region {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        access: access.to_owned(),
        offset: u64::from_str_radix(offset, 16).ok()?,
        is_of_file: inode != "0" && words.next().is_some_and(|path| path.starts_with('/')),
        resident_kib: 0,
        anonymous_kib: None,
        swapped_kib: None,
        is_locked: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
5600a000-5600c000 r-xp 00116000 fe:00 79153   /usr/bin/a program
Size:                  8 kB
Rss:                   4 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me sd
5600c000-5600d000 r--p 00118000 fe:00 79153   /usr/bin/a program
Rss:                   4 kB
Anonymous:             4 kB
VmFlags: rd mr lo mw me
5700c000-5700d000 rw-p 00000000 00:00 0   [heap]
Rss:                   8 kB
";

    #[test]
    fn regions_tell_where_they_lie_and_whose_they_are() {
        let told: Vec<_> = regions(SMAPS)
            .iter()
            .map(|r| {
                (r.start, r.end, r.access.clone(), r.is_of_file, r.resident_kib, r.anonymous_kib, r.is_locked)
            })
            .collect();
        assert_eq!(
            told,
            [
                (0x5600_a000, 0x5600_c000, "r-xp".to_owned(), true, 4, Some(0), false),
                (0x5600_c000, 0x5600_d000, "r--p".to_owned(), true, 4, Some(4), true),
                (0x5700_c000, 0x5700_d000, "rw-p".to_owned(), false, 8, None, false),
            ]
        );
    }

    fn can_go(header: &str, rest: &str) -> bool {
        let smaps = format!("{header} fe:00 79153   /usr/bin/a program\nRss:   4 kB\n{rest}");
        let regions = regions(&smaps);
        assert_eq!(regions.len(), 1);
        regions[0].can_go()
    }

    #[test]
    fn pages_that_differ_from_the_file_stay_be_they_in_memory_or_moved_out() {
        let code = "5600a000-5600c000 r-xp 00116000";
        assert!(can_go(code, "Anonymous:   0 kB\nSwap:   0 kB\n"));
        assert!(!can_go(code, "Anonymous:   4 kB\nSwap:   0 kB\n"));
        assert!(!can_go(code, "Anonymous:   0 kB\nSwap:   4 kB\n"));
        assert!(!can_go(code, "Anonymous:   0 kB\n"));
        assert!(!can_go(code, "Swap:   0 kB\n"));
        assert!(!can_go(code, "Anonymous:   0 kB\nSwap:   0 kB\nVmFlags: rd ex lo\n"));
    }

    #[test]
    fn what_the_dynamic_linker_may_have_written_to_stays() {
        let unchanged = "Anonymous:   0 kB\nSwap:   0 kB\n";
        assert!(can_go("5600a000-5600c000 r--p 00000000", unchanged));
        assert!(!can_go("5600a000-5600c000 r--p 00116000", unchanged));
        assert!(!can_go("5600a000-5600c000 rw-p 00000000", unchanged));
        assert!(!can_go("5600a000-5600c000 r-xs 00000000", unchanged));
    }

    #[test]
    fn lasting_segments_are_code_and_constants_of_the_program_alone() {
        static CONSTANT: &str = "a constant that lies in the program's file";
        static CHANGES: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(1);
        let segments = lasting_segments();
        let has = |address: usize| segments.iter().any(|segment| segment.contains(&address));
        let code: fn(&str) -> Vec<Region> = regions;
        assert!(
            has(code as usize) && has(CONSTANT.as_ptr() as usize) && has(libc::malloc as *const () as usize)
        );
        let (on_stack, on_heap) = (1, Box::new(1));
        assert!(!has(&raw const CHANGES as usize) && !has(&raw const on_stack as usize));
        assert!(!has(&raw const *on_heap as usize));
    }

    /// A panic's backtrace maps the program's file, with the same look as the executable's first segment, and gives the address back: had it
    /// gone between the look and the call, what lay there next would have been lost.
    #[test]
    fn another_mapping_of_the_programs_file_stays() {
        let file = fs::File::open("/proc/self/exe").unwrap();
        let own = lasting_segments();
        // SAFETY: a new private mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0)
        };
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let found = regions(&smaps);
        let mapped = found.iter().find(|region| region.start == start as usize).expect("it was mapped");
        assert!(mapped.can_go() && !mapped.is_within(&own));
        assert!(found.iter().any(|region| region.can_go() && region.is_within(&own)));
        // SAFETY: once, with pointer and length of `mmap`; nothing refers to it.
        unsafe { libc::munmap(start, 4096) };
    }

    #[test]
    fn code_that_was_let_go_runs_all_the_same_and_constants_keep_their_bytes() {
        static CONSTANT: &str = "a constant that lies in the program's file";
        let before = CONSTANT.to_owned();
        // Other tests run beside this one: how much is resident afterwards is not for certain.
        assert!(release_start_up_memory() > 0);
        assert_eq!(CONSTANT, before);
        assert_eq!(regions(SMAPS).len(), 3);
    }
}
