"""gen.py KIND NUM FIRST SPLIT OUT: log-mels and mouth of clips of 201 frames"""
import sys,time,torch,numpy as np
from avatar_v.world.recorded import say_recorded
from avatar_v.world.speech import say
from avatar_v.world.voice import sample_voice
from avatar_v.world.style import sample_style
from avatar_v.world.motion import motion_track
from avatar_v.world.splits import RANGES
from avatar_v.media.sound import prepared
from avatar_v.models.audio import log_mel, mel_filters
torch.set_num_threads(1)
kind,num,first,split,out=sys.argv[1],int(sys.argv[2]),int(sys.argv[3]),sys.argv[4],sys.argv[5]
F=mel_filters(80); A=[];M=[];t=time.process_time()
for i in range(first,first+num):
    pid=RANGES[split][i%5000]; sid=RANGES[split][(i*414213)%1000000]
    v,s=sample_voice(pid),sample_style(pid)
    sp=(say_recorded if kind=='recorded' else say)(sid,v,s,201)
    A.append((sp.audio*32768).short()); M.append(motion_track(sp,s,seed=i)[:,:6] if False else motion_track(sp,s,seed=i))
torch.save(dict(audio=torch.stack(A),motion=torch.stack(M)),out)
print(kind,num,'cpu',time.process_time()-t)
