"""Trainings that are killed and continued, against the same ones left alone: `nemotron prove resume`."""
