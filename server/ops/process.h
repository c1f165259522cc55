// Process-wide settings of the daemon: allocator and limits. Main thread, before any other thread.
#pragma once

namespace luwu {

// Keeps freed memory in the process: fresh pages cost tens of microseconds each on virtual
// machines, so glibc must not give big blocks back to the kernel and ask for them again.
void TuneAllocator();

// As many file descriptors as the hard limit allows: links, memfds and connections use them.
void RaiseFileLimit();

}  // namespace luwu
