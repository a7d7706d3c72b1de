import torch
from avatar_v.media.reading import read_audio
from avatar_v.media.sound import prepared
from avatar_v.motion.landmarks import motion_from_landmarks
d=torch.load('/work/sharp/reader/real.pt'); out={}
for k,v in d.items():
    a=read_audio(f'/work/shared/media/{k}.mp4'); n=len(v['frames'])
    a=a[:n*640]; a=torch.nn.functional.pad(a,(0,n*640-len(a)))
    out[k]=dict(audio=a,motion=motion_from_landmarks(v['landmarks'],v['found']))
    print(k,n,a.shape,a.std(),out[k]['motion'][:,0].std(),v['found'].float().mean())
torch.save(out,'real_audio.pt')
