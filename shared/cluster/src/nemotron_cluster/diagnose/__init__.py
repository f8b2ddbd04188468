"""Why a job failed: known messages of the software that runs it, with what they mean and what to do."""
