// Names for clang's thread-safety attributes; empty for other compilers. The clang build turns
// violations into errors.
#pragma once

#if defined(__clang__)
#define LUWU_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define LUWU_THREAD_ATTRIBUTE(x)
#endif

#define LUWU_CAPABILITY(x) LUWU_THREAD_ATTRIBUTE(capability(x))
#define LUWU_SCOPED_CAPABILITY LUWU_THREAD_ATTRIBUTE(scoped_lockable)
#define LUWU_GUARDED_BY(x) LUWU_THREAD_ATTRIBUTE(guarded_by(x))
#define LUWU_PT_GUARDED_BY(x) LUWU_THREAD_ATTRIBUTE(pt_guarded_by(x))
#define LUWU_REQUIRES(...) LUWU_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define LUWU_ACQUIRE(...) LUWU_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define LUWU_RELEASE(...) LUWU_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define LUWU_EXCLUDES(...) LUWU_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define LUWU_NO_THREAD_SAFETY_ANALYSIS LUWU_THREAD_ATTRIBUTE(no_thread_safety_analysis)
