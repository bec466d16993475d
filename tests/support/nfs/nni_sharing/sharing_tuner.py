"""A father, whose result its children wait for within ``generate_parameters``: NNI's own form of weight sharing."""

import threading

from nni.tuner import Tuner


class SharingTuner(Tuner):
    def __init__(self):
        super().__init__()
        self.father_id = None
        self.path = None
        self.checksum = None
        self.has_result = threading.Event()
        self.lock = threading.Lock()

    def update_search_space(self, search_space):
        pass

    def generate_parameters(self, parameter_id, **kwargs):
        with self.lock:
            if self.father_id is None:
                self.father_id = parameter_id
                return {"prev_id": parameter_id, "id": parameter_id}
        self.has_result.wait()
        return {"id": parameter_id, "prev_id": self.father_id, "prev_path": self.path}

    def receive_trial_result(self, parameter_id, parameters, reward, **kwargs):
        if parameter_id == self.father_id:
            self.path, self.checksum = reward["path"], reward["checksum"]
            self.has_result.set()
        elif reward["checksum"] != self.checksum:
            raise ValueError("Inconsistency in weight sharing: {} != {}".format(reward["checksum"], self.checksum))
