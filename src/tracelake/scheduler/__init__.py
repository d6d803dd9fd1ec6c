"""The scheduler fires cron sources when they are due. It uses the Dispatcher's API and no database."""

from tracelake.scheduler.loop import Scheduler, SchedulerConfig

__all__ = ["Scheduler", "SchedulerConfig"]
